"""What each rank of a profile tells the others, once, when its steps are done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from hvdtrain.measure.noise_scale import NoiseRecord, Norms
from hvdtrain.measure.profile_loader import Pouring
from hvdtrain.measure.profile_recorder import ProfileRecorder
from hvdtrain.scaling.profile import Gpu, NoiseScale


@dataclass(frozen=True)
class RankMeasures:
    """What one rank measured.

    Attributes:
        rows: Of its steps, as ``StepClock.rows``.
        spans: Of its steps, as ``StepClock.spans``; empty where no trace is asked for.
        norms: Number of sampled steps and means of the squared norms, as ``NormProbe.take``.
        loader: When nothing held it up.
        gpu: While the steps ran.
    """

    rows: list[list[float]]
    spans: list[list[tuple[str, float, float]]]
    norms: tuple[int, float, float]
    loader: Pouring = field(default_factory=Pouring)
    gpu: Gpu | None = None

    @classmethod
    def of(
        cls,
        recorder: ProfileRecorder,
        *,
        has_spans: bool,
        loader: Pouring | None = None,
        gpu: Gpu | None = None,
    ) -> RankMeasures:
        """What a recorder holds now."""
        clock = recorder.clock
        spans = clock.spans() if has_spans else []
        return cls(clock.rows(), spans, recorder.norms.take(), loader or Pouring(), gpu)


def noise_of(told: Sequence[RankMeasures], record: NoiseRecord) -> NoiseScale | None:
    """The noise scale from the ranks' norms; None where a rank left a step out that another took.

    Args:
        told: By rank.
        record: An empty one.
    """
    counts = {rank.norms[0] for rank in told}
    if len(counts) != 1:
        return None
    if count := counts.pop():
        record.add(Norms(fmean(rank.norms[1] for rank in told), told[0].norms[2], count))
    return record.estimate()

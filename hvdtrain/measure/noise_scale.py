"""The gradient noise scale of a running training, from norms that data parallelism has at hand.

A rank's own gradient is one of a small batch, the reduced one of the global batch. Formula and source:
``scaling.statistics.noise_scale``.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import fmean, stdev

from hvdtrain.scaling.profile import NoiseScale
from hvdtrain.scaling.statistics import noise_scale

_LEAST = 5  # steps below which a ratio of averages says nothing
_LEAST_TO_TELL = 20
_CLEARLY = 2.0  # times the upper end of the estimate
_KEPT = 100  # steps: the noise scale grows while a training goes on


@dataclass(frozen=True)
class Norms:
    """Squared norms of the gradients of one step.

    Attributes:
        small: Of the ranks' own gradients, their mean.
        big: Of the reduced gradient.
    """

    small: float
    big: float


class NoiseRecord:
    """Norms of the last sampled steps.

    Args:
        small: Samples of a rank's batch.
        big: Samples of the global batch.
    """

    def __init__(self, small: float, big: float) -> None:
        self._small_batch, self._big_batch = small, big
        self._norms: deque[Norms] = deque(maxlen=_KEPT)

    def add(self, norms: Norms) -> None:
        """Adds a step; one whose norms are no finite numbers is left out."""
        if math.isfinite(norms.small) and math.isfinite(norms.big):
            self._norms.append(norms)

    def estimate(self) -> NoiseScale | None:
        """The simple noise scale in samples; None where there are too few steps or it is no finite number."""
        if len(self._norms) < _LEAST or self._small_batch >= self._big_batch:
            return None
        pairs = [(one.small, one.big) for one in self._norms]
        simple = noise_scale(pairs, self._small_batch, self._big_batch)
        # Too much noise for the signal to be seen: the noise scale is large, nobody knows how large.
        return NoiseScale(simple, len(pairs)) if math.isfinite(simple) else None

    def verdict(self) -> str:
        """A line where the global batch is clearly past what the gradient's noise lets it use; else empty.

        Clearly: it is above twice the upper end of the estimate, two standard errors away on both sides of
        the ratio.
        """
        estimate = self.estimate()
        if estimate is None or estimate.num_steps < _LEAST_TO_TELL:
            return ""
        signals, noises = zip(*map(self._parts, self._norms), strict=True)
        signal = fmean(signals) - 2 * _error(signals)
        if signal <= 0:
            return ""
        upper = max(0.0, fmean(noises) + 2 * _error(noises)) / signal
        if self._big_batch <= _CLEARLY * upper:
            return ""
        return (
            f"your batch is past what this problem can use: the gradient's noise scale is about "
            f"{estimate.simple:.3g} samples ({estimate.num_steps} steps), the global batch "
            f"{self._big_batch:g}; more samples in a step save few steps"
        )

    def _parts(self, norms: Norms) -> tuple[float, float]:
        """|G|^2 and S of one step."""
        small, big = self._small_batch, self._big_batch
        signal = (big * norms.big - small * norms.small) / (big - small)
        return signal, (norms.small - norms.big) / (1 / small - 1 / big)


def _error(values: tuple[float, ...]) -> float:
    """The standard error of their mean."""
    return stdev(values) / math.sqrt(len(values))

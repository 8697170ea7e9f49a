"""Compares two records step by step, in the order in which one thing leads to the next.

Learning rate and samples make the loss, the loss the gradients, these the parameters: the first of them that
differs is where the fault is, whatever differs after it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch

from hvdtrain.tools.verify.records import Record, Tensors
from hvdtrain.tools.verify.request import Run
from hvdtrain.train.recorder import RankShare

# A gradient that is smaller than this part of all gradients together is measured by that part: a bias before
# a batch norm, whose gradient is zero but for rounding, has no scale of its own.
_SMALLEST = 0.01
_DRIFTS = 5  # how many times what rounding alone grew to is allowed
_MOST_DRIFT = 0.02  # beyond it nothing is proven: a real fault would hide in what is allowed
_SMALLEST_LOSS = 0.1  # below it the rounding of the scores, not the loss, is the scale


@dataclass(frozen=True)
class Finding:
    """How far one thing of one step differs from the reference.

    Attributes:
        step: From 1; 0 is before the first step.
        what: ``initial parameter``, ``learning rate``, ``samples``, ``loss``, ``gradient``, ``clipped
            gradient``, ``parameter``, ``replicas`` or ``buffer``.
        name: Of the tensor; empty where it is none.
        run: The run that is not the reference.
        absolute: Largest difference of an element.
        relative: 2-norm of the difference, over the thing's scale.
        values: The two values, where they are numbers.
    """

    step: int
    what: str
    name: str
    run: Run
    absolute: float
    relative: float
    values: tuple[float, float] | None = None


@dataclass
class Comparison:
    """What comparing a run with the reference found.

    Attributes:
        largest: The largest difference of tensors or losses, relative to its scale; None before anything is
            compared.
        first: The first difference beyond the tolerance; None where the runs are equal.
        proven: Steps up to the first difference, or to where rounding alone grew too large to tell.
    """

    largest: Finding | None = None
    first: Finding | None = None
    proven: int = 0


def measure_drift(reference: Record, control: Record, tolerance: float) -> list[float]:
    """How far rounding alone has grown by each step, relative to the things' scales; step 0 first.

    Args:
        reference: A run.
        control: The same run, whose first parameters were moved by rounding's size.
        tolerance: Of the comparison.
    """
    drift = [0.0] * (reference.num_steps + 1)
    for finding in _Walk(reference, control, tolerance).findings():
        if math.isfinite(finding.relative):
            drift[finding.step] = max(drift[finding.step], finding.relative)
    return list(accumulate(drift, max))


def compare(reference: Record, other: Record, tolerance: float, drift: Sequence[float] = ()) -> Comparison:
    """Compares two runs up to the first step that differs.

    Args:
        reference: What the other is compared with.
        other: Of the same job and global batch.
        tolerance: Largest difference relative to the scale that is the order of summation.
        drift: What ``measure_drift`` found; ``_DRIFTS`` times as much is allowed.
    """
    result = Comparison(proven=min(reference.num_steps, other.num_steps))
    for finding in _Walk(reference, other, tolerance).findings():
        is_small = finding.relative <= tolerance  # a NaN is not
        if not is_small and drift and drift[finding.step] > _MOST_DRIFT:
            result.proven = finding.step - 1
            break
        if result.largest is None or finding.relative > result.largest.relative:
            result.largest = finding
        if not is_small and not (drift and finding.relative <= _DRIFTS * drift[finding.step]):
            result.first, result.proven = finding, max(0, finding.step - 1)
            break
    return result


@dataclass
class _Walk:
    """Goes through two records."""

    reference: Record
    other: Record
    tolerance: float
    # Elements whose gradient was within rounding of zero in some step, and how far steps may have moved them.
    unsettled: dict[str, torch.Tensor] = field(default_factory=dict)
    reach: float = 0.0

    def findings(self) -> Iterator[Finding]:
        yield from self._tensors(0, "initial parameter", "parameters")
        yield from self._tensors(0, "initial buffer", "buffers")
        for step in range(1, max(self.reference.num_steps, self.other.num_steps) + 1):
            yield from self._step(step)

    def _step(self, step: int) -> Iterator[Finding]:
        if step > min(self.reference.num_steps, self.other.num_steps):
            yield self._difference(step, "number of steps", math.inf)
            return
        yield from self._facts(step)
        for what, kind in (("gradient", "reduced"), ("clipped gradient", "clipped")):
            ours, theirs = self.reference.gradients(step, kind), self.other.gradients(step, kind)
            if ours is None or theirs is None:
                continue
            yield from self._measured(step, what, ours, theirs, _gradient_scales(ours))
            if kind == "clipped":
                self._note_unsettled(ours, theirs)
        yield from self._replicas(step)
        yield from self._tensors(step, "parameter", "parameters")
        yield from self._tensors(step, "buffer", "buffers")

    def _facts(self, step: int) -> Iterator[Finding]:
        ours, theirs = self.reference.step(step), self.other.step(step)
        self.reach += 2 * max((*ours.lr, *theirs.lr), default=0.0)
        if len(ours.lr) != len(theirs.lr):
            yield self._difference(step, "learning rate", math.inf)
        for mine, its in zip(ours.lr, theirs.lr, strict=False):
            if not math.isclose(mine, its, rel_tol=1e-9):
                yield self._difference(step, "learning rate", math.inf, (mine, its))
        if _samples(ours.ranks) != _samples(theirs.ranks):
            yield self._difference(step, "samples", math.inf)
        scale = max(abs(ours.loss), _SMALLEST_LOSS)
        relative = abs(theirs.loss - ours.loss) / scale
        yield self._difference(step, "loss", relative, (ours.loss, theirs.loss))
        if bool(ours.skipped) != bool(theirs.skipped):
            yield self._difference(step, "skipped step", math.inf)

    def _replicas(self, step: int) -> Iterator[Finding]:
        """Ranks of one run must hold the same parameters to the last bit."""
        for record in (self.reference, self.other):
            sums = [share.checksum for share in record.step(step).ranks]
            if any(one != sums[0] for one in sums):
                yield Finding(step, "replicas", "", record.run, math.inf, math.inf)

    def _tensors(self, step: int, what: str, kind: str) -> Iterator[Finding]:
        ours, theirs = self.reference.tensors(step, kind), self.other.tensors(step, kind)
        assert ours is not None
        assert theirs is not None
        yield from self._measured(step, what, ours, theirs, _size_scales(ours))

    def _measured(
        self, step: int, what: str, ours: Tensors, theirs: Tensors, scales: Mapping[str, float]
    ) -> Iterator[Finding]:
        for name in [*ours, *(name for name in theirs if name not in ours)]:
            if name not in ours or name not in theirs or ours[name].shape != theirs[name].shape:
                yield self._difference(step, what, math.inf, name=name)
                continue
            difference = _difference(ours[name], theirs[name])
            if what == "parameter" and name in self.unsettled:
                beyond = (difference.abs() - self.reach).clamp(min=0)
                difference = torch.where(self.unsettled[name], beyond, difference)
            absolute, norm = float(difference.abs().max()) if difference.numel() else 0.0, _norm(difference)
            relative = norm / scales[name] if norm and scales[name] else math.inf if norm else 0.0
            yield Finding(step, what, name, self.other.run, absolute, relative)

    def _note_unsettled(self, ours: Tensors, theirs: Tensors) -> None:
        """Adam's step is as large for a gradient of 1e-9 as for one of 1, and its sign is the rounding's."""
        for name, scale in _gradient_scales(ours).items():
            rounding = self.tolerance * scale / max(1, ours[name].numel()) ** 0.5
            small = (ours[name].abs() <= rounding) | (theirs[name].abs() <= rounding)
            if small.any():
                self.unsettled[name] = self.unsettled.get(name, torch.zeros(())).bool() | small

    def _difference(
        self,
        step: int,
        what: str,
        relative: float,
        values: tuple[float, float] | None = None,
        name: str = "",
    ) -> Finding:
        absolute = abs(values[1] - values[0]) if values else math.inf
        return Finding(step, what, name, self.other.run, absolute, relative, values)


def _samples(ranks: tuple[RankShare, ...]) -> Counter[int]:
    return Counter(index for share in ranks for index in share.indices)


def _difference(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Element by element, in double precision; two NaN or two equal infinities do not differ."""
    mine, its = ours.to(torch.float64), theirs.to(torch.float64)
    same = (mine == its) | (mine.isnan() & its.isnan())
    return torch.where(same, torch.zeros((), dtype=torch.float64), its - mine)


def _norm(values: torch.Tensor) -> float:
    return float(values.to(torch.float64).norm()) if values.numel() else 0.0


def _gradient_scales(gradients: Tensors) -> dict[str, float]:
    norms = {name: _norm(value) for name, value in gradients.items()}
    smallest = _SMALLEST * math.hypot(*norms.values())
    return {name: max(norm, smallest) for name, norm in norms.items()}


def _size_scales(tensors: Tensors) -> dict[str, float]:
    """A tensor's norm, or that of equally many elements of a hundredth of the usual size."""
    norms = {name: _norm(value) for name, value in tensors.items()}
    real = [name for name, value in tensors.items() if value.is_floating_point()]
    count = sum(tensors[name].numel() for name in real)
    usual = math.hypot(*(norms[name] for name in real)) / max(1, count) ** 0.5
    return {name: max(norm, _SMALLEST * usual * tensors[name].numel() ** 0.5) for name, norm in norms.items()}

"""The gradient noise scale of a running training, from norms that data parallelism has at hand.

A rank's own gradient is one of a small batch, the reduced one of the global batch. Formula and source:
``scaling.statistics.noise_scale``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from hvdtrain.scaling.profile import NoiseScale
from hvdtrain.scaling.statistics import noise_scale

_LEAST = 5  # steps below which a ratio of averages says nothing
_LEAST_TO_TELL, _LEAST_REPORTS = 20, 8  # steps, and the means that their spread is taken from
_CLEARLY = 2.0  # times the upper end of the estimate
_ERRORS = 3.0  # a training asks after each report: at the border two of them would tell one in eight wrongly
_KEPT, _KEPT_REPORTS = 100, 20  # steps and means, at least: the noise scale grows while a training goes on


@dataclass(frozen=True)
class Norms:
    """A report: squared norms of the gradients of some steps, their means.

    Attributes:
        small: Of the ranks' own gradients, the mean over the ranks too.
        big: Of the reduced gradient.
        count: Steps, at least one.
    """

    small: float
    big: float
    count: int = 1


class NoiseRecord:
    """Reports of the last sampled steps.

    Args:
        small: Samples of a rank's batch.
        big: Samples of the global batch.
    """

    def __init__(self, small: float, big: float) -> None:
        self._small_batch, self._big_batch = small, big
        self._norms: deque[Norms] = deque()
        self._num_steps = 0

    def add(self, norms: Norms) -> None:
        """Adds a report; one whose norms are no finite numbers is left out."""
        if not (math.isfinite(norms.small) and math.isfinite(norms.big)):
            return
        self._norms.append(norms)
        self._num_steps += norms.count
        while len(self._norms) > _KEPT_REPORTS and self._num_steps - self._norms[0].count >= _KEPT:
            self._num_steps -= self._norms.popleft().count

    def estimate(self) -> NoiseScale | None:
        """The simple noise scale in samples; None where there are too few steps or it is no finite number."""
        if self._num_steps < _LEAST or self._small_batch >= self._big_batch:
            return None
        counts = self._counts()
        # Both averages of its ratio are linear in the norms: those of the means are those of all steps.
        small = _mean([one.small for one in self._norms], counts)
        big = _mean([one.big for one in self._norms], counts)
        simple = noise_scale([(small, big)], self._small_batch, self._big_batch)
        # Too much noise for the signal to be seen: the noise scale is large, nobody knows how large.
        return NoiseScale(simple, self._num_steps) if math.isfinite(simple) else None

    def verdict(self) -> str:
        """A line where the global batch is clearly past what the gradient's noise lets it use; else empty.

        Clearly: it is above twice the upper end of the estimate, three standard errors away on both sides of
        the ratio.
        """
        estimate = self.estimate()
        if estimate is None or self._num_steps < _LEAST_TO_TELL or len(self._norms) < _LEAST_REPORTS:
            return ""
        counts = self._counts()
        signals, noises = zip(*map(self._parts, self._norms), strict=True)
        signal = _mean(signals, counts) - _ERRORS * _error(signals, counts)
        if signal <= 0:
            return ""
        upper = max(0.0, _mean(noises, counts) + _ERRORS * _error(noises, counts)) / signal
        if self._big_batch <= _CLEARLY * upper:
            return ""
        return (
            f"your batch is past what this problem can use: the gradient's noise scale is about "
            f"{estimate.simple:.3g} samples ({estimate.num_steps} steps), the global batch "
            f"{self._big_batch:g}; more samples in a step save few steps"
        )

    def _counts(self) -> list[int]:
        return [one.count for one in self._norms]

    def _parts(self, norms: Norms) -> tuple[float, float]:
        """|G|^2 and S of a report."""
        small, big = self._small_batch, self._big_batch
        signal = (big * norms.big - small * norms.small) / (big - small)
        return signal, (norms.small - norms.big) / (1 / small - 1 / big)


def _mean(values: Sequence[float], counts: Sequence[int]) -> float:
    """The mean over all steps of values that are means over ``counts`` steps."""
    return math.fsum(value * c for value, c in zip(values, counts, strict=True)) / sum(counts)


def _error(values: Sequence[float], counts: Sequence[int]) -> float:
    """The standard error of their mean, from how they spread: the variance of one over c steps is a c-th."""
    mean = _mean(values, counts)
    squares = math.fsum(c * (value - mean) ** 2 for value, c in zip(values, counts, strict=True))
    variance = squares / (len(values) - 1)  # of one step
    return math.sqrt(variance / sum(counts))

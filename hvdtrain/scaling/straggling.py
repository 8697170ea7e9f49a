"""How long the slowest of many ranks takes: what synchronous training waits for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

_NORMAL_P95, _SKEWED = 1.645, 1.3


def excess_of_max(ranks: int) -> float:
    """E[max of p standard normals], in standard deviations.

    sqrt(2 ln p) bounds it from above and is 40 % too much at p = 8; this is exact for one and two, and Blom's
    quantile Phi^-1((p - 0.375)/(p + 0.25)) beyond, which is within 1 % up to a million.
    """
    if ranks <= 1:
        return 0.0
    if ranks == 2:
        return 1 / math.sqrt(math.pi)
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


@dataclass(frozen=True)
class Tail:
    """How far the 95th percentile and the largest of measured steps lie above their median, in seconds.

    ``ranks`` is how many ranks each measured step waited for.
    """

    p95_s: float
    max_s: float
    ranks: int

    def excess(self, ranks: int) -> float:
        """Seconds by which the median of the slowest of ``ranks`` exceeds the measured median.

        The slowest of p ranks stays below x with F(x)^(p/N), if F is the distribution for N of them: its
        median is F's quantile of 0.5^(N/p). Beyond the 95th percentile F's tail is taken to be exponential,
        up to the largest step that was seen.
        """
        if ranks <= self.ranks:
            return 0.0
        beyond = 1 - 0.5 ** (self.ranks / ranks)
        return min(self.max_s, self.p95_s * math.log(0.5 / beyond) / math.log(0.5 / 0.05))

    def scaled(self, factor: float) -> Tail:
        """The tail of noise that is ``factor`` times as large."""
        return Tail(factor * self.p95_s, factor * self.max_s, self.ranks)

    def is_skewed(self, deviation_s: float) -> bool:
        """Whether the tail is clearly longer than that of normal noise of this standard deviation."""
        return self.p95_s > _SKEWED * _NORMAL_P95 * deviation_s


def smooth_max(first: float, second: float, power: float = 4.0) -> float:
    """(a^q + b^q)^(1/q): two stages that work at once, the faster of which still disturbs the slower."""
    top = max(first, second)
    if top <= 0:
        return 0.0
    return float(top * ((first / top) ** power + (second / top) ** power) ** (1 / power))

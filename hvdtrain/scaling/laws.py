"""The laws of scaling that know no mechanism: Amdahl, Gustafson, Karp and Flatt, Gunther.

They stand beside the predictions for comparison; the verdict does not use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from hvdtrain.scaling.estimation import solve


def efficiency(throughput: float, ranks: float, base_throughput: float, base_ranks: float) -> float:
    """Weak-scaling efficiency: throughput(p) / ((p/p0) throughput(p0))."""
    return throughput / (ranks / base_ranks * base_throughput)


def amdahl(serial: float, ranks: float) -> float:
    """Speed-up of p ranks where a share ``serial`` does not scale."""
    return 1 / (serial + (1 - serial) / ranks)


def gustafson(serial: float, ranks: float) -> float:
    """Speed-up where the work grows with the ranks."""
    return serial + (1 - serial) * ranks


def karp_flatt(speedup: float, ranks: float) -> float:
    """The serial share that a measured speed-up amounts to: (1/S - 1/p)/(1 - 1/p)."""
    return (1 / speedup - 1 / ranks) / (1 - 1 / ranks)


@dataclass(frozen=True)
class ScalabilityLaw:
    """Gunther's universal scalability law, X(p) = rate p / (1 + s(p-1) + k p(p-1))."""

    rate: float
    contention: float
    coherency: float

    def throughput(self, ranks: float) -> float:
        """Throughput at ``ranks`` ranks."""
        slowed = 1 + self.contention * (ranks - 1) + self.coherency * ranks * (ranks - 1)
        return self.rate * ranks / slowed


def fit_scalability_law(rows: Sequence[tuple[float, float]]) -> ScalabilityLaw:
    """Fits the law to pairs of ranks and throughput, by least squares of relative errors in p/X(p).

    Terms that the rows cannot tell are left out: one row gives the rate, two also s, three also k. A term
    that would be negative is 0.
    """
    terms = min(3, len(rows))
    best: tuple[float, list[float]] | None = None
    for chosen in _subsets(terms):
        found = _least_squares(rows, chosen)
        if min(found) < 0:
            continue
        error = sum((_slowness(found, p) / (p / x) - 1) ** 2 for p, x in rows)
        if best is None or error < best[0] - 1e-15:
            best = (error, found)
    assert best is not None
    base, contention, coherency = best[1]
    return ScalabilityLaw(1 / base, contention / base, coherency / base)


def _subsets(terms: int) -> list[tuple[int, ...]]:
    rest = range(1, terms)
    return [(0, *chosen) for size in range(len(rest) + 1) for chosen in combinations(rest, size)]


def _basis(ranks: float) -> tuple[float, float, float]:
    return 1.0, ranks - 1, ranks * (ranks - 1)


def _slowness(found: Sequence[float], ranks: float) -> float:
    return sum(a * b for a, b in zip(found, _basis(ranks), strict=True))


def _least_squares(rows: Sequence[tuple[float, float]], chosen: Sequence[int]) -> list[float]:
    scaled = [[_basis(p)[i] * x / p for i in chosen] for p, x in rows]
    normal = [
        [sum(row[i] * row[j] for row in scaled) for j in range(len(chosen))] for i in range(len(chosen))
    ]
    right = [sum(row[i] for row in scaled) for i in range(len(chosen))]
    for i in range(len(chosen)):
        normal[i][i] *= 1 + 1e-12
    found = [0.0, 0.0, 0.0]
    for i, value in zip(chosen, solve(normal, right), strict=True):
        found[i] = value
    return found

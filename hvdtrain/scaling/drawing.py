"""Draws unknowns so that they follow what is believed after measurements, and reads quantiles of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hvdtrain.scaling.estimation import Estimate, Matrix, Vector, dot, slopes_of, solve

_LEAST_EFFECTIVE = 25.0  # draws that count, below which their weights are chance
_MENDS, _MENDED = 5, 0.003  # moves of a draw at most, and the logarithm within which it is where it should be
_RIDGE = 1e-6  # of values that hardly depend on anything


@dataclass(frozen=True)
class Draw:
    """Unknowns drawn from an estimate, and how much they count among all that were drawn."""

    theta: Vector
    weight: float


def draws(
    modes: Sequence[Estimate],
    number: int,
    misfit: Callable[[Sequence[float]], float],
    predict: Callable[[Sequence[float]], Sequence[float]],
    spread: Sequence[float],
) -> list[Draw]:
    """Unknowns drawn around each estimate, the same at each call, weighted so that they follow ``misfit``.

    An estimate's covariance knows the model's slope there only: behind a kink a draw is far off what was
    measured. So each is moved, as little as the priors' scales have it, until the model says of it what the
    slope did (a Newton step or some). Two explanations may fit alike: a draw's weight is its posterior over
    the density that it was drawn with (importance sampling of a mixture). Where hardly any keeps its weight,
    the weights' differences are lessened until enough do.

    Args:
        modes: Estimates from different starts.
        number: How many to draw in all.
        misfit: As of ``make_misfit``.
        predict: The model, as there.
        spread: The priors' scales.
    """
    factors = [_cholesky(mode.covariance) for mode in modes]
    chance = random.Random(20_170_607)
    drawn: list[Vector] = []
    logs: list[float] = []
    for mode, factor in zip(modes, factors, strict=True):
        mend = _make_mend(mode, predict, spread)
        for _ in range(number // len(modes) // 2):
            normal = [chance.gauss(0, 1) for _ in mode.theta]
            moves = [dot(row, normal) for row in factor]
            for sign in (1, -1):
                first = [middle + sign * move for middle, move in zip(mode.theta, moves, strict=True)]
                drawn.append(mend(first))
                logs.append(-misfit(drawn[-1]) / 2 - _log_density(first, modes, factors))
    return [Draw(theta, weight) for theta, weight in zip(drawn, _weights(logs), strict=True)]


def _weights(logs: Sequence[float]) -> Vector:
    """Weights of these logarithms, taken to the largest power, at most 1, at which enough draws count."""
    power, top = 1.0, max(logs)
    while True:
        weights = [math.exp(power * (log - top)) for log in logs]
        effective = sum(weights) ** 2 / sum(weight * weight for weight in weights)
        if effective >= min(_LEAST_EFFECTIVE, len(logs)) or power < 1e-3:
            return weights
        power *= 0.8


def _make_mend(
    mode: Estimate, predict: Callable[[Sequence[float]], Sequence[float]], spread: Sequence[float]
) -> Callable[[Vector], Vector]:
    """What moves a draw until the model says of it what the slope at the estimate says."""
    now, slopes = predict(mode.theta), slopes_of(predict, mode.theta, spread)
    free = [i for i, one in enumerate(spread) if one > 0]
    squares = [spread[i] ** 2 for i in free]
    count = len(now)
    # G = S J' (J S J')^-1: of all moves that mend the values the smallest, in the priors' scales.
    inner = [
        [sum(s * slope[a] * slope[b] for s, slope in zip(squares, slopes, strict=True)) for b in range(count)]
        for a in range(count)
    ]
    for a in range(count):
        inner[a][a] += _RIDGE

    def mend(theta: Vector) -> Vector:
        here = list(theta)
        moved = [theta[i] - mode.theta[i] for i in free]
        aim = [
            value + sum(m * slope[a] for m, slope in zip(moved, slopes, strict=True))
            for a, value in enumerate(now)
        ]
        for _ in range(_MENDS):
            off = [want - got for want, got in zip(aim, predict(here), strict=True)]
            if max(map(abs, off)) < _MENDED:
                break
            pulls = solve([list(row) for row in inner], off)
            for i, square, slope in zip(free, squares, slopes, strict=True):
                here[i] += max(-1.0, min(1.0, square * dot(slope, pulls)))
        return here

    return mend


def _log_density(theta: Sequence[float], modes: Sequence[Estimate], factors: Sequence[Matrix]) -> float:
    """Logarithm of the density of the mixture of normals, up to a constant."""
    logs = []
    for mode, factor in zip(modes, factors, strict=True):
        scores: Vector = []
        spread = 0.0
        for i, row in enumerate(factor):
            if row[i] > 0:
                scores.append((theta[i] - mode.theta[i] - dot(row[:i], scores)) / row[i])
                spread += math.log(row[i])
            else:
                scores.append(0.0)
        logs.append(-dot(scores, scores) / 2 - spread)
    top = max(logs)
    return top + math.log(sum(math.exp(log - top) for log in logs))


def quantiles(values: Sequence[tuple[float, float]], shares: Sequence[float]) -> list[float]:
    """Quantiles of pairs of value and weight."""
    ordered = sorted(values)
    total = sum(weight for _, weight in ordered)
    found = []
    for share in shares:
        passed, at = 0.0, ordered[-1][0]
        for value, weight in ordered:
            passed += weight
            if passed >= share * total:
                at = value
                break
        found.append(at)
    return found


def densest(
    values: Sequence[tuple[float, float]], width: float, within: tuple[float, float]
) -> tuple[float, float]:
    """The interval of this width that holds the most weight of pairs of value and weight.

    Args:
        values: The pairs.
        width: The interval's width.
        within: Where the interval may lie; at least as wide. Of several alike, the highest is taken.
    """
    last = within[1] - width
    starts = {within[0], last, *(one for one, _ in values if within[0] <= one <= last)}
    held = {low: sum(weight for one, weight in values if low <= one <= low + width) for low in starts}
    best = max(starts, key=lambda low: (held[low], low))
    return best, best + width


def _cholesky(matrix: Sequence[Sequence[float]]) -> Matrix:
    """Lower factor of a positive semidefinite matrix; rows of known quantities are zero."""
    size = len(matrix)
    factor = [[0.0] * size for _ in range(size)]
    for i in range(size):
        for j in range(i + 1):
            rest = matrix[i][j] - dot(factor[i][:j], factor[j][:j])
            if i == j:
                factor[i][i] = math.sqrt(max(0.0, rest))
            elif factor[j][j] > 0:
                factor[i][j] = rest / factor[j][j]
    return factor

"""Estimates unknowns from few measured values and a prior: Gauss and Newton's method, with their covariance.

Plain Python: the systems have eight unknowns.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Vector = list[float]
Matrix = list[list[float]]

_DIFFERENCE = 0.02  # step of the numerical derivative: wide, since the model has kinks
_ROUNDS = 60
# Student's degrees of freedom of the priors: a site may be far off what others have, if its rows say so.
_PRIOR_FREEDOM = 4.0
_LEAST_EFFECTIVE = 25.0  # draws that count, below which their weights are chance


@dataclass(frozen=True)
class Estimate:
    """The likeliest unknowns, their covariance, and how far values and prior had to be bent (chi square)."""

    theta: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    misfit: float


def make_misfit(
    predict: Callable[[Sequence[float]], Sequence[float]],
    values: Sequence[float],
    noise: float,
    centre: Sequence[float],
    spread: Sequence[float],
) -> Callable[[Sequence[float]], float]:
    """Twice the negative logarithm of the posterior of Student's priors and Gaussian noise.

    Args:
        predict: The model: unknowns to one value for each measured one.
        values: What was measured.
        noise: Standard deviation of each value.
        centre: The prior's centres.
        spread: The prior's scales; an unknown with 0 is known.
    """
    free = [i for i, one in enumerate(spread) if one > 0]

    def misfit(theta: Sequence[float]) -> float:
        told = zip(predict(theta), values, strict=True)
        bent = sum(_bend((theta[i] - centre[i]) / spread[i]) for i in free)
        return sum(((model - value) / noise) ** 2 for model, value in told) + bent

    return misfit


def estimate(
    predict: Callable[[Sequence[float]], Sequence[float]],
    values: Sequence[float],
    noise: float,
    prior: tuple[Sequence[float], Sequence[float]],
    start: Sequence[float],
) -> Estimate:
    """The unknowns that ``make_misfit`` likes best.

    Args:
        predict: The model, as there.
        values: What was measured.
        noise: Standard deviation of each value.
        prior: The prior's centres and scales.
        start: Where the search begins.
    """
    centre, spread = prior
    free = [i for i, one in enumerate(spread) if one > 0]
    misfit = make_misfit(predict, values, noise, centre, spread)
    theta, damping = list(start), 1e-3
    best = misfit(theta)
    for _ in range(_ROUNDS):
        normal, gradient = _normal_equations(predict, values, noise, theta, (centre, spread))
        for i in range(len(free)):
            normal[i][i] *= 1 + damping
        move = solve(normal, gradient)
        tried = list(theta)
        for i, step in zip(free, move, strict=True):
            tried[i] += max(-1.0, min(1.0, step))
        found = misfit(tried)
        if found < best:
            done = best - found < 1e-9 * (1 + best)
            theta, best, damping = tried, found, damping / 4
            if done:
                break
        else:
            damping *= 8
            if damping > 1e9:
                break
    normal, _ = _normal_equations(predict, values, noise, theta, (centre, spread))
    return Estimate(tuple(theta), _covariance(normal, free, len(theta)), best)


@dataclass(frozen=True)
class Draw:
    """Unknowns drawn from an estimate, and how much they count among all that were drawn."""

    theta: Vector
    weight: float


def draws(modes: Sequence[Estimate], number: int, misfit: Callable[[Sequence[float]], float]) -> list[Draw]:
    """Unknowns drawn around each estimate, the same at each call, weighted so that they follow ``misfit``.

    An estimate's covariance knows the model's slope there only, and two explanations may fit alike: a draw's
    weight is its posterior over the density that it was drawn with (importance sampling of a mixture). Where
    hardly any keeps its weight, all count alike: rather too wide a band than that of a few.

    Args:
        modes: Estimates from different starts.
        number: How many to draw in all.
        misfit: As of ``make_misfit``.
    """
    factors = [_cholesky(mode.covariance) for mode in modes]
    chance = random.Random(20_170_607)
    drawn: list[Vector] = []
    for mode, factor in zip(modes, factors, strict=True):
        for _ in range(number // len(modes) // 2):
            normal = [chance.gauss(0, 1) for _ in mode.theta]
            moves = [_dot(row, normal) for row in factor]
            drawn.append([middle + move for middle, move in zip(mode.theta, moves, strict=True)])
            drawn.append([middle - move for middle, move in zip(mode.theta, moves, strict=True)])
    logs = [-misfit(theta) / 2 - _log_density(theta, modes, factors) for theta in drawn]
    weights = [math.exp(log - max(logs)) for log in logs]
    effective = sum(weights) ** 2 / sum(weight * weight for weight in weights)
    if effective < _LEAST_EFFECTIVE:
        weights = [1.0] * len(drawn)
    return [Draw(theta, weight) for theta, weight in zip(drawn, weights, strict=True)]


def _log_density(theta: Sequence[float], modes: Sequence[Estimate], factors: Sequence[Matrix]) -> float:
    """Logarithm of the density of the mixture of normals, up to a constant."""
    logs = []
    for mode, factor in zip(modes, factors, strict=True):
        scores: Vector = []
        spread = 0.0
        for i, row in enumerate(factor):
            if row[i] > 0:
                scores.append((theta[i] - mode.theta[i] - _dot(row[:i], scores)) / row[i])
                spread += math.log(row[i])
            else:
                scores.append(0.0)
        logs.append(-_dot(scores, scores) / 2 - spread)
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
            rest = matrix[i][j] - _dot(factor[i][:j], factor[j][:j])
            if i == j:
                factor[i][i] = math.sqrt(max(0.0, rest))
            elif factor[j][j] > 0:
                factor[i][j] = rest / factor[j][j]
    return factor


def solve(matrix: Matrix, right: Vector) -> Vector:
    """Solves a symmetric positive system by elimination with pivots."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda i: abs(rows[i][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for below in range(column + 1, size):
            factor = rows[below][column] / rows[column][column]
            rows[below] = [a - factor * b for a, b in zip(rows[below], rows[column], strict=True)]
    found = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(rows[i][j] * found[j] for j in range(i + 1, size))
        found[i] = (rows[i][size] - rest) / rows[i][i]
    return found


def _normal_equations(
    predict: Callable[[Sequence[float]], Sequence[float]],
    values: Sequence[float],
    noise: float,
    theta: Sequence[float],
    prior: tuple[Sequence[float], Sequence[float]],
) -> tuple[Matrix, Vector]:
    centre, spread = prior
    free = [i for i, one in enumerate(spread) if one > 0]
    now = predict(theta)
    slopes = []
    for i in free:
        low, high = list(theta), list(theta)
        low[i] -= _DIFFERENCE
        high[i] += _DIFFERENCE
        pairs = zip(predict(high), predict(low), strict=True)
        slopes.append([(above - below) / (2 * _DIFFERENCE) for above, below in pairs])
    weight = 1 / (noise * noise)
    normal = [[weight * _dot(a, b) for b in slopes] for a in slopes]
    errors = [value - model for value, model in zip(values, now, strict=True)]
    gradient = [weight * _dot(slope, errors) for slope in slopes]
    for row, i in enumerate(free):
        bend = (centre[i] - theta[i]) / spread[i]
        pull = (_PRIOR_FREEDOM + 1) / (_PRIOR_FREEDOM + bend * bend)
        normal[row][row] += pull / spread[i] ** 2
        gradient[row] += pull * bend / spread[i]
    return normal, gradient


def _bend(score: float) -> float:
    return (_PRIOR_FREEDOM + 1) * math.log1p(score * score / _PRIOR_FREEDOM)


def _covariance(normal: Matrix, free: Sequence[int], size: int) -> tuple[tuple[float, ...], ...]:
    whole = [[0.0] * size for _ in range(size)]
    for column, i in enumerate(free):
        unit = [1.0 if row == column else 0.0 for row in range(len(free))]
        for j, value in zip(free, solve([list(row) for row in normal], unit), strict=True):
            whole[j][i] = value
    return tuple(tuple(row) for row in whole)


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(first, second, strict=True))

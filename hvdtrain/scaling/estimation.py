"""Estimates unknowns from few measured values and a prior: Gauss and Newton's method, with their covariance.

Plain Python: the systems have eight unknowns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Vector = list[float]
Matrix = list[list[float]]

_DIFFERENCE = 0.02  # step of the numerical derivative: wide, since the model has kinks
_ROUNDS = 60
# Student's degrees of freedom of the priors: a site may be far off what others have, if its rows say so.
_PRIOR_FREEDOM = 4.0


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
    now, slopes = predict(theta), slopes_of(predict, theta, spread)
    weight = 1 / (noise * noise)
    normal = [[weight * dot(a, b) for b in slopes] for a in slopes]
    errors = [value - model for value, model in zip(values, now, strict=True)]
    gradient = [weight * dot(slope, errors) for slope in slopes]
    for row, i in enumerate(free):
        bend = (centre[i] - theta[i]) / spread[i]
        pull = (_PRIOR_FREEDOM + 1) / (_PRIOR_FREEDOM + bend * bend)
        normal[row][row] += pull / spread[i] ** 2
        gradient[row] += pull * bend / spread[i]
    return normal, gradient


def slopes_of(
    predict: Callable[[Sequence[float]], Sequence[float]], theta: Sequence[float], spread: Sequence[float]
) -> Matrix:
    """The change of each value for a change of each unknown that is free, a row an unknown."""
    slopes = []
    for i in (i for i, one in enumerate(spread) if one > 0):
        low, high = list(theta), list(theta)
        low[i] -= _DIFFERENCE
        high[i] += _DIFFERENCE
        pairs = zip(predict(high), predict(low), strict=True)
        slopes.append([(above - below) / (2 * _DIFFERENCE) for above, below in pairs])
    return slopes


def _bend(score: float) -> float:
    return (_PRIOR_FREEDOM + 1) * math.log1p(score * score / _PRIOR_FREEDOM)


def _covariance(normal: Matrix, free: Sequence[int], size: int) -> tuple[tuple[float, ...], ...]:
    whole = [[0.0] * size for _ in range(size)]
    for column, i in enumerate(free):
        unit = [1.0 if row == column else 0.0 for row in range(len(free))]
        for j, value in zip(free, solve([list(row) for row in normal], unit), strict=True):
            whole[j][i] = value
    return tuple(tuple(row) for row in whole)


def dot(first: Sequence[float], second: Sequence[float]) -> float:
    """The sum of products."""
    return sum(a * b for a, b in zip(first, second, strict=True))

"""Draws of unknowns: against the posterior on a grid, with two explanations, behind a kink."""

import math

import pytest

from hvdtrain.scaling.drawing import densest, draws, quantiles
from hvdtrain.scaling.estimation import estimate, make_misfit


def test_draws_follow_the_posterior():
    def model(theta):
        return [theta[0]]

    known = ((0.0,), (1.0,))
    found = estimate(model, [0.5], 0.5, known, [0.0])
    drawn = draws([found], 4000, make_misfit(model, [0.5], 0.5, *known), model, known[1])
    pairs = [(one.theta[0], one.weight) for one in drawn]
    # the posterior on a grid
    misfit = make_misfit(model, [0.5], 0.5, *known)
    grid = [(x / 200, math.exp(-misfit([x / 200]) / 2)) for x in range(-1000, 1000)]
    assert quantiles(pairs, (0.1, 0.5, 0.9)) == pytest.approx(quantiles(grid, (0.1, 0.5, 0.9)), abs=0.03)


def test_two_explanations_are_both_drawn():
    def model(theta):
        return [abs(theta[0])]

    known = ((0.0,), (3.0,))
    modes = [estimate(model, [2.0], 0.1, known, [start]) for start in (1.0, -1.0)]
    drawn = draws(modes, 400, make_misfit(model, [2.0], 0.1, *known), model, known[1])
    positive = sum(one.weight for one in drawn if one.theta[0] > 0)
    assert positive / sum(one.weight for one in drawn) == pytest.approx(0.5, abs=0.02)


def test_draws_behind_a_kink_are_where_they_were_measured():
    """The slope at the estimate tells nothing of the branch that takes over beside it."""

    def model(theta):
        return [max(theta[0], 3 * theta[1])]

    known, noise = ((0.0, -1.0), (1.0, 1.0)), 0.01
    found = estimate(model, [0.5], noise, known, [0.5, -1.0])
    drawn = draws([found], 400, make_misfit(model, [0.5], noise, *known), model, known[1])
    told = [(model(one.theta)[0], one.weight) for one in drawn]
    assert quantiles(told, (0.02, 0.5, 0.98)) == pytest.approx([0.5, 0.5, 0.5], abs=3 * noise)
    behind = sum(one.weight for one in drawn if 3 * one.theta[1] > 0.4)
    assert behind / sum(one.weight for one in drawn) > 0.01


def test_weights_are_lessened_until_enough_draws_count():
    def model(theta):
        return [theta[0] ** 3, theta[0]]

    known = ((0.0,), (100.0,))
    values = [1000.0, -3.0]  # nothing explains both
    found = estimate(model, values, 0.01, known, [1.0])
    drawn = draws([found], 400, make_misfit(model, values, 0.01, *known), model, known[1])
    weights = [one.weight for one in drawn]
    assert sum(weights) ** 2 / sum(weight * weight for weight in weights) >= 25


def test_the_densest_part():
    values = [(0.1, 1.0), (0.5, 2.0), (0.6, 2.0), (0.9, 3.0)]
    assert densest(values, 0.2, (0.0, 1.0)) == (0.5, 0.7)
    assert densest(values, 0.4, (0.0, 1.0)) == (0.5, 0.9)
    assert densest([(0.1, 1.0), (0.9, 1.0)], 0.2, (0.0, 1.0)) == (0.8, 1.0)
    assert densest(values, 0.2, (0.0, 0.4)) == pytest.approx((0.1, 0.3))


def test_quantiles_of_weights():
    assert quantiles([(3.0, 1.0), (1.0, 1.0), (2.0, 2.0)], (0.0, 0.25, 0.5, 1.0)) == [1.0, 1.0, 2.0, 3.0]

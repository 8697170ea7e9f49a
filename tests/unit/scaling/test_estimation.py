"""The estimate of few unknowns from few values: against closed forms, and with two explanations."""

import math

import pytest

from hvdtrain.scaling.estimation import densest, draws, estimate, make_misfit, quantiles, solve


def test_a_system_is_solved():
    assert solve([[2.0, 1.0], [1.0, 3.0]], [4.0, 7.0]) == pytest.approx([1.0, 2.0])


def test_precise_values_outweigh_the_prior():
    # y = a + b x through (1, 3) and (2, 5): a = 1, b = 2
    found = estimate(
        lambda t: [t[0] + t[1], t[0] + 2 * t[1]], [3.0, 5.0], 1e-4, ((0.0, 0.0), (10.0, 10.0)), [0.0, 0.0]
    )
    assert found.theta == pytest.approx((1.0, 2.0), abs=1e-5)
    # of b: the difference of two values, sqrt(2) of their noise
    assert math.sqrt(found.covariance[1][1]) == pytest.approx(math.sqrt(2) * 1e-4, rel=1e-3)


def test_what_no_value_tells_stays_at_the_prior():
    found = estimate(lambda t: [t[0]], [3.0], 0.1, ((0.0, 7.0, 5.0), (10.0, 2.0, 0.0)), [0.0, 7.0, 5.0])
    assert found.theta[1:] == pytest.approx((7.0, 5.0))
    # Student's prior of 4 degrees: curvature 5/4 at its middle
    assert math.sqrt(found.covariance[1][1]) == pytest.approx(2.0 * math.sqrt(4 / 5))
    assert found.covariance[2] == (0.0, 0.0, 0.0)


def test_draws_follow_the_posterior():
    def model(theta):
        return [theta[0]]

    known = ((0.0,), (1.0,))
    found = estimate(model, [0.5], 0.5, known, [0.0])
    drawn = draws([found], 4000, make_misfit(model, [0.5], 0.5, *known))
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
    drawn = draws(modes, 400, make_misfit(model, [2.0], 0.1, *known))
    positive = sum(one.weight for one in drawn if one.theta[0] > 0)
    assert positive / sum(one.weight for one in drawn) == pytest.approx(0.5, abs=0.02)


def test_the_densest_part():
    values = [(0.1, 1.0), (0.5, 2.0), (0.6, 2.0), (0.9, 3.0)]
    assert densest(values, 0.2, (0.0, 1.0)) == (0.5, 0.7)
    assert densest(values, 0.4, (0.0, 1.0)) == (0.5, 0.9)
    assert densest([(0.1, 1.0), (0.9, 1.0)], 0.2, (0.0, 1.0)) == (0.8, 1.0)
    assert densest(values, 0.2, (0.0, 0.4)) == pytest.approx((0.1, 0.3))


def test_quantiles_of_weights():
    assert quantiles([(3.0, 1.0), (1.0, 1.0), (2.0, 2.0)], (0.0, 0.25, 0.5, 1.0)) == [1.0, 1.0, 2.0, 3.0]

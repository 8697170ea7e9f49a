"""The estimate of few unknowns from few values, against closed forms."""

import math

import pytest

from hvdtrain.scaling.estimation import estimate, solve


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

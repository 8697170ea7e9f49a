"""Scales and ticks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.report.scale import Scale, linear_ticks, log_ticks, span, time_ticks, wants_log

VALUES = st.floats(-1e12, 1e12, allow_nan=False)
POSITIVE = st.floats(1e-12, 1e12)


def test_ends_middle_and_beyond():
    scale = Scale(0, 10, 100, 200)
    assert [scale.at(value) for value in (-5, 0, 5, 10, 99)] == [100, 100, 150, 200, 200]


def test_a_logarithmic_scale_gives_each_factor_the_same_length():
    scale = Scale(1, 100, 0, 20, is_log=True)
    assert [round(scale.at(value), 9) for value in (1, 10, 100)] == [0, 10, 20]


@given(st.lists(VALUES, min_size=1, max_size=5))
def test_a_span_has_a_length_and_holds_its_values(values):
    low, high = span(values)
    assert low < high
    assert low <= min(values)
    assert max(values) <= high


@given(VALUES, POSITIVE)
def test_linear_ticks_are_few_and_inside(low, length):
    high = low + length
    if high > low:
        ticks = linear_ticks(low, high)
        assert 1 <= len(ticks) <= 5
        assert all(low - 1e-6 * length <= tick <= high + 1e-6 * length for tick in ticks)


@given(POSITIVE, st.floats(1.01, 1e9))
def test_logarithmic_ticks_are_few_and_inside(low, factor):
    ticks = log_ticks(low, low * factor)
    assert 1 <= len(ticks) <= 6
    assert all(0.999 * low <= tick <= 1.001 * low * factor for tick in ticks)


def test_ticks_are_round():
    assert linear_ticks(0, 0.0021) == pytest.approx([0, 0.0005, 0.001, 0.0015, 0.002])
    assert log_ticks(0.002, 1.5) == pytest.approx([0.003, 0.01, 0.03, 0.1, 0.3, 1])
    assert log_ticks(1e-9, 1e9) == pytest.approx([1e-9, 1e-5, 1e-1, 1e3, 1e7])
    assert time_ticks(100, 4000) == [120, 300, 600, 1200, 1800, 3600]


def test_a_loss_that_falls_by_two_decades_wants_a_logarithm_and_one_that_touches_zero_cannot_have_it():
    assert wants_log([1.8, 0.0016])
    assert not wants_log([1.8, 0.9])
    assert not wants_log([1.8, 0.0])
    assert not wants_log([])

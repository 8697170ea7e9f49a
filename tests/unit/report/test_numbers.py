"""Numbers as people read them."""

import pytest

from hvdtrain.report.numbers import bytes_text, counted, percent, short, span_text, time_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0016654, "0.00167"),
        (12.5, "12.5"),
        (999.6, "1,000"),
        (46915.2, "46,900"),
        (6e-9, "6e-9"),
        (2.5e12, "2.5e12"),
        (-0.25, "-0.25"),
    ],
)
def test_three_digits_that_count(value, text):
    assert short(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (5e-6, "5 µs"),
        (0.083, "83 ms"),
        (1.2, "1.2 s"),
        (2100, "35 min"),
        (26640, "7.4 h"),
        (3e5, "3.47 d"),
    ],
)
def test_time_in_the_unit_that_suits(seconds, text):
    assert time_text(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (102_400_000, "102 MB"), (80e9, "80 GB")]
)
def test_bytes_in_powers_of_1000(size, text):
    assert bytes_text(size) == text


def test_a_share_in_percent_has_no_minus_zero():
    assert percent(0.8406) == "84.1 %"
    assert percent(-1e-9) == "0.0 %"


def test_a_range_tells_its_unit_once():
    assert span_text(1236, 2262, time_text) == "20.6 to 37.7 min"
    assert span_text(60, 300, time_text) == "60 s to 5 min"
    assert span_text(0.5, 0.5, percent) == "50.0 %"


def test_a_count_has_its_noun():
    assert [counted(number, "rank") for number in (1, 2, 4096)] == ["1 rank", "2 ranks", "4,096 ranks"]

"""From values to places: linear and logarithmic scales, and where their ticks stand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Maps ``low`` to ``start`` and the larger ``high`` to ``end``; both above 0 if it is logarithmic."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """The place of a value; values outside the ends stand at the ends."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def span(
    values: Sequence[float], *, is_log: bool = False, from_zero: bool = False, least_air: float = 0.0
) -> tuple[float, float]:
    """Ends of a scale that holds all values with a little air, never of no length.

    Args:
        values: What it holds; none stand for 0 and 1.
        is_log: Whether it is logarithmic.
        from_zero: Whether it begins at 0 where no value is below.
        least_air: As a fraction of the largest value: what is nearly the same looks nearly the same.
    """
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if is_log:
        low, high = low / 1.1, high * 1.1
        return (low, high) if low < high else (low / 2, low * 2)
    largest = max(abs(low), abs(high))
    air = max(0.05 * (high - low), least_air * largest) or 0.05 * largest or 0.5
    return (0.0 if from_zero and low >= 0 else low - air), high + air


def wants_log(values: Sequence[float], decades: float = 1.3) -> bool:
    """Whether values, all above 0, span so much that a linear scale would hide most of them."""
    return bool(values) and min(values) > 0 and math.log10(max(values) / min(values)) >= decades


# seconds that people count in; time_text writes each without a fraction
_TIMES_S = (
    *(digit * 10.0**power for power in range(-6, 1) for digit in (1, 2, 5)),
    *(10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0),
    *(3600.0 * hours for hours in (2, 3, 6, 12, 24, 48, 120, 240, 480, 1200, 2400, 4800, 12_000, 24_000)),
)


def time_ticks(low: float, high: float) -> list[float]:
    """Seconds at which people look, between the ends: 1 min, 2 min, 5 min ... 1 h, 2 h."""
    return [tick for tick in _TIMES_S if low <= tick <= high]


def linear_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between the ends, at most so many."""
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for factor in (1, 2, 5, 10, 20, 50):
        step = factor * power
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first + 1 <= most:
            return [step * i for i in range(first, last + 1)]
    return [low]


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Powers of ten between the ends, every k-th where they are many, with 2 and 5 where they are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [f * 10.0**e for e in range(first, last + 1) for f in factors if low <= f * 10.0**e <= high]
        if 2 <= len(ticks) <= most:
            return ticks
    powers = [10.0**e for e in range(first, last + 1) if low <= 10.0**e <= high]
    return powers[:: max(1, math.ceil(len(powers) / most))] or linear_ticks(low, high, most)

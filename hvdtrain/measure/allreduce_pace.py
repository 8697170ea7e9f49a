"""How often each size is repeated, so that all measurements end in time."""

from __future__ import annotations

import math
from dataclasses import dataclass

WARM_UPS = 3  # the first of them is also looked at for its sum
_FEWEST = 3  # of which a median still says something


@dataclass
class Pace:
    """Shares out the time among the series and, in a series, among its sizes.

    All ranks must get the same answers, so every number that comes in is one that they agreed on.

    Attributes:
        limit_s: For all series together.
        num_series: Series that are still to come, the present one included.
        repeat: Repetitions of a size, at most.
        may_stop: Whether large sizes may be left out.
    """

    limit_s: float
    num_series: int
    repeat: int
    may_stop: bool
    _series_s: float = 0.0

    def begin_series(self) -> None:
        """A series begins: its part of what is left. What one does not use, the others get."""
        self._series_s = max(0.0, self.limit_s) / max(1, self.num_series)

    def end_series(self, spent_s: float) -> None:
        """It has ended; ``spent_s`` is what it took."""
        self.limit_s -= spent_s
        self.num_series -= 1

    def has_time(self, expected_s: float, spent_s: float) -> bool:
        """Whether a size is still measured.

        Args:
            expected_s: One repetition, by the sizes before it.
            spent_s: By this series so far.
        """
        needed_s = expected_s * (WARM_UPS + min(_FEWEST, self.repeat))
        return not self.may_stop or spent_s + needed_s <= self._series_s

    def repetitions(self, time_s: float, spent_s: float, sizes_left: int) -> int:
        """Repetitions of the present size.

        Args:
            time_s: One repetition, by the warm-up.
            spent_s: By this series so far.
            sizes_left: Sizes of the series, the present one included.
        """
        share_s = max(0.0, self._series_s - spent_s) / sizes_left
        affordable = math.floor(share_s / time_s) if time_s > 0 else self.repeat
        return max(min(_FEWEST, self.repeat), min(self.repeat, affordable))

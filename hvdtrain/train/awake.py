"""How long something has gone on while this process could run."""

from __future__ import annotations

from collections.abc import Callable

# A look that comes so many times later than it should have was not late for load: the process was stopped.
_LATE = 4.0


class Awake:
    """Leaves out the time in which this process was suspended, by Slurm, a terminal or a sleeping machine.

    Args:
        clock: Seconds that only go forward.
        every_s: Seconds between two looks.
    """

    def __init__(self, clock: Callable[[], float], every_s: float) -> None:
        self._clock, self._every_s = clock, every_s
        self._looked_s, self._lost_s = clock(), 0.0
        self._thing: object = None
        self._lost_before_s = 0.0

    def look(self, thing: object, since_s: float) -> float:
        """Seconds that a thing has gone on since then, without those that were lost meanwhile."""
        now, before_s = self._clock(), self._lost_s
        self._lost_s += max(0.0, now - self._looked_s - _LATE * self._every_s)
        self._looked_s = now
        if thing is not self._thing:
            self._thing, self._lost_before_s = thing, before_s
        return now - since_s - (self._lost_s - self._lost_before_s)

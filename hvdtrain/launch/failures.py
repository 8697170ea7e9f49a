"""Which rank failed first, from what arrived of the ranks' failures and when."""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field

from hvdtrain.launch.outcome import RankEnd

_TOGETHER_S = 0.5  # failures that arrive within it are put in order by the hosts' clocks


@dataclass
class Failures:
    """Collects ends that were failures, and deaths, which agents tell of before they know the rest.

    Attributes:
        clock: Gives seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _ends: list[tuple[float, RankEnd]] = field(default_factory=list)
    _deaths: list[tuple[float, RankEnd]] = field(default_factory=list)

    def died(self, end: RankEnd) -> None:
        """Takes the news of a death; the agent may be ended before it tells the rest."""
        self._deaths.append((self.clock(), end))

    def add(self, end: RankEnd) -> None:
        """Takes an end that was a failure."""
        self._ends.append((self.clock(), end))

    def in_order(self, ended: Container[int]) -> tuple[RankEnd, ...]:
        """The first failure, then the others by their ranks; empty if nothing failed.

        Args:
            ended: Ranks whose agents told their whole end.
        """
        arrived = list(self._ends)
        # Of those that told no more only the first counts, and only before any other failure: a launcher that
        # ends the job kills programs and agents in any order.
        if self._deaths and self._deaths[0][1].rank not in ended:
            arrived += self._deaths[:1] if not arrived or self._deaths[0][0] < arrived[0][0] else []
        if not arrived:
            return ()
        begin_s = min(arrived_s for arrived_s, _ in arrived)
        together = [end for arrived_s, end in arrived if arrived_s - begin_s <= _TOGETHER_S]
        first = min(together, key=lambda end: end.time_s)
        others = (end for _, end in arrived if end is not first)
        return (first, *sorted(others, key=lambda end: end.rank))

"""Rank 0's profile of a training that goes on: keeps what the ranks told, writes it, names who stays slow."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from hvdtrain.measure.noise_scale import NoiseRecord
from hvdtrain.measure.profile_pace import Told
from hvdtrain.measure.profile_slowest import slowest
from hvdtrain.measure.profile_times import Table, rank_times
from hvdtrain.scaling.profile import NoiseScale

_KEPT_NUMBERS = 2_000_000  # of all steps and ranks together: 16 MB
_LEAST_STEPS = 2  # of one step nothing is known of how steps vary
_WRITE_EVERY_S = 60.0
_SLOW = 0.10  # longer than the median of the others
_LEAST_TIMES, _LEAST_S = 3, 10.0  # in a row, before a rank is named
_TELL_EVERY_S = 600.0
# Means over ranks and steps, for the metrics: shares of a step over time.
_SHOWN = ("load_s", "forward_s", "backward_s", "exposed_s", "optimizer_s", "wait_s", "other_s")


@dataclass(frozen=True)
class Outlet:
    """Where a running profile goes.

    Attributes:
        write: Writes the profile of these steps.
        tell: Tells the user something.
        show: Takes a figure for the metrics.
    """

    write: Callable[[Table, NoiseScale | None], None]
    tell: Callable[[str], None]
    show: Callable[[str, float], None]


class RunProfile:
    """What rank 0 knows of the pace of all ranks.

    Args:
        hosts: By rank.
        noise: Of this training.
        outlet: Where it goes.
        clock: Seconds that only go forward.
    """

    def __init__(
        self,
        hosts: tuple[str, ...],
        noise: NoiseRecord,
        outlet: Outlet,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hosts, self._noise, self._outlet, self._clock = hosts, noise, outlet, clock
        self._tables: deque[Table] = deque()
        self._slow = _SlowRank(clock)
        self._written_s = clock()
        self._has_told_batch = False

    def hear(self, told: Told) -> None:
        """The ranks told of their last steps."""
        for norms in told.norms:
            self._noise.add(norms)
        estimate = self._noise.estimate()
        if estimate:
            self._outlet.show("noise_scale", estimate.simple)
        if not self._has_told_batch and (verdict := self._noise.verdict()):
            self._has_told_batch = True
            self._outlet.tell(verdict)
        if not len(told.table):
            return
        times = rank_times(told.table, self._hosts)
        for name in _SHOWN:
            self._outlet.show(name, fmean(getattr(rank, name) for rank in times))
        self._keep(told.table)
        if line := self._slow.look(told.table, self._hosts):
            self._outlet.tell(line)
        if self._clock() - self._written_s >= _WRITE_EVERY_S:
            self.write()

    def write(self) -> None:
        """Writes the profile, if there are steps enough for one."""
        self._written_s = self._clock()
        if sum(map(len, self._tables)) >= _LEAST_STEPS:
            self._outlet.write(np.concatenate(list(self._tables)), self._noise.estimate())

    def _keep(self, table: Table) -> None:
        self._tables.append(table)
        while len(self._tables) > 1 and sum(kept.size for kept in self._tables) > _KEPT_NUMBERS:
            self._tables.popleft()


class _SlowRank:
    """Notices a rank that stays slower than the others."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rank, self._times, self._since_s = -1, 0, 0.0
        self._told_s = -_TELL_EVERY_S + clock()

    def look(self, table: Table, hosts: tuple[str, ...]) -> str:
        """A line about it, or nothing."""
        now = self._clock()
        # A step's median: one that was disturbed says nothing of a rank that stays slow.
        found = slowest(rank_times(np.median(table, axis=0, keepdims=True), hosts))
        if found.excess <= _SLOW:
            self._rank = -1
            return ""
        if found.rank != self._rank:
            self._rank, self._times, self._since_s = found.rank, 0, now
        self._times += 1
        stays = self._times >= _LEAST_TIMES and now - self._since_s >= _LEAST_S
        if not stays or now - self._told_s < _TELL_EVERY_S:
            return ""
        self._told_s = now
        return (
            f"rank {found.rank} on {found.host} stays slower than the others: its own work of a step takes "
            f"{100 * found.excess:.0f} % longer than their median, most of it in {found.part}; "
            "all wait for it"
        )

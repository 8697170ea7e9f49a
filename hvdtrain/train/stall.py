"""Notices a run that stands still, and leaves a record of where every rank stood.

A thread of each rank watches its own progress. All ranks wait for one that stops, so all of them notice;
each writes its report, the lowest rank that did puts them together, and all end with exit code 4. A rank
that cannot even report (a stopped process) is the silent one.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Protocol

from hvdtrain.config import StallConfig
from hvdtrain.errors import ExitCode
from hvdtrain.train.autopsy import name_some, put_together
from hvdtrain.train.awake import Awake

# Sections in which a rank works by itself: one that stands still there is waited for.
WORKING = frozenset({"start", "loading", "forward", "backward", "optimizer", "evaluation", "saving"})
# The limit for a step follows what the run has shown, within these.
_LEAST_S, _FACTOR, _MIN_STEPS = 30.0, 20.0, 10
_LOOK_EVERY_S = 0.5
# Where a collective is waited for. It may be part of another section: batch norm over all ranks in the
# forward pass, DDP's new buckets before the second one.
_COLLECTIVE = re.compile(r"/(horovod/torch|torch/distributed|hvdtrain/backends)/|in _pre_forward$")


@dataclass
class _Place:
    """Where a rank is, since when, and how long it may stay without progress."""

    section: str = "start"
    step: int = 0
    progress_s: float = 0.0
    limit_s: float = 0.0


class Progress(Protocol):
    """What training tells about itself."""

    def enter(self, section: str) -> None:
        """This rank goes on with another part of its work."""

    def tick(self, step: int) -> None:
        """A step, or a batch of an evaluation, is done."""

    def begin_loop(self) -> None:
        """Training or evaluation begins over its data: processes start, caches are cold."""

    def extend(self) -> None:
        """A save begins: for two steps all ranks may wait for what rank 0 does alone."""


class Unwatched:
    """Nobody listens."""

    def enter(self, section: str) -> None:
        """Nothing."""

    def tick(self, step: int) -> None:
        """Nothing."""

    def begin_loop(self) -> None:
        """Nothing."""

    def extend(self) -> None:
        """Nothing."""


class Sentinel:
    """Watches this rank's progress.

    Args:
        config: The job's ``stall`` section.
        rank: This rank.
        size: Number of ranks.
        folder: Where reports go, the run directory if this rank sees it; None writes to stderr.
        clock: Seconds that only go forward.
        end: Ends this process with a code.
    """

    def __init__(
        self,
        config: StallConfig,
        rank: int,
        size: int,
        folder: Path | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._config, self._rank, self._size, self._folder = config, rank, size, folder
        self._clock, self._end = clock, end
        self._place = _Place(progress_s=clock(), limit_s=config.start_s)
        self._slowest_s, self._num_steps, self._num_extended = 0.0, 0, 0
        self._slowest_first_s, self._began_s, self._is_beginning = 0.0, 0.0, False
        self._over = Event()
        self._thread = Thread(target=self._watch, daemon=True, name="hvdtrain-stall")

    def begin(self) -> None:
        """Begins to watch."""
        self._thread.start()

    def enter(self, section: str) -> None:
        """This rank goes on with another part of its work."""
        self._place.section = section

    def tick(self, step: int) -> None:
        """A step, or a batch of an evaluation, is done."""
        now = self._clock()
        if not self._num_extended:
            self._learn(now)
        self._num_steps += 1
        self._num_extended = max(0, self._num_extended - 1)
        self._is_beginning = False
        self._place = _Place("loading", step, now, self._limit_s())

    def begin_loop(self) -> None:
        """Training or evaluation begins over its data: processes start, caches are cold."""
        self._is_beginning, self._began_s = True, self._clock()
        if self._num_steps:  # or the start is going on, which has a limit of its own
            self._place.limit_s = max(self._place.limit_s, self._limit_s())

    def extend(self) -> None:
        """A save begins: for two steps all ranks may wait for what rank 0 does alone."""
        if not self._num_extended:
            self._place.limit_s += self._config.save_s
        # This step and the next: the others go on, and wait for rank 0 in the step after.
        self._num_extended = 2

    def close(self) -> None:
        """Ends the watch."""
        self._over.set()

    @property
    def limit_s(self) -> float:
        """How long this rank may now go without progress."""
        return self._place.limit_s

    def _learn(self, now: float) -> None:
        if self._is_beginning:
            self._slowest_first_s = max(self._slowest_first_s, now - self._began_s)
        elif self._num_steps:
            self._slowest_s = max(self._slowest_s, now - self._place.progress_s)

    def _limit_s(self) -> float:
        first_s = self._first_limit_s() if self._is_beginning else 0.0
        more_s = self._config.save_s if self._num_extended else 0.0
        return max(self._step_limit_s(), first_s) + more_s

    def _first_limit_s(self) -> float:
        """Of a loop's first batch; that of the run's first loop has shown how long one takes."""
        least_s = self._config.most_s if self._config.step_s is None else self._config.step_s
        return min(self._config.start_s, max(least_s, _FACTOR * self._slowest_first_s))

    def _step_limit_s(self) -> float:
        if self._config.step_s is not None:
            return self._config.step_s
        if self._num_steps < _MIN_STEPS:
            return self._config.most_s
        return min(self._config.most_s, max(_LEAST_S, _FACTOR * self._slowest_s))

    def _watch(self) -> None:
        awake = Awake(self._clock, _LOOK_EVERY_S)
        while not self._over.wait(_LOOK_EVERY_S):
            place = self._place
            if awake.look(place, place.progress_s) > place.limit_s and place is self._place:
                self._report(place)
                return

    def _report(self, place: _Place) -> None:
        stood_s = self._clock() - place.progress_s
        where = f"in {place.section}, last finished step {place.step}"
        head = f"rank {self._rank}: {where}, no progress for {stood_s:.0f} s"
        told = put_together(self._folder, self._rank, head, self._verdict) if self._folder else head
        if told:
            sys.stderr.write(f"hvdtrain: error: stalled: {told}\n")
            sys.stderr.flush()
        self._end(int(ExitCode.STALLED))

    def _verdict(self, reports: dict[int, str]) -> str:
        return verdict_on(reports, self._size)


def verdict_on(reports: dict[int, str], size: int) -> str:
    """Which rank the others wait for, in a line.

    Args:
        reports: By rank; the first line says in which section it stands.
        size: Number of ranks.
    """
    missing = [rank for rank in range(size) if rank not in reports]
    sections = {rank: _section(text) for rank, text in reports.items()}
    waiting = {rank for rank, text in reports.items() if _is_waiting(text)}
    working = [rank for rank in reports if rank not in waiting]
    if missing:
        return f"{_ranks(missing)} silent: no report, stopped or gone; {_others(waiting, sections)}"
    if working and waiting:
        where = ", ".join(sorted({sections[rank] for rank in working}))
        return f"{_ranks(working)} silent in {where}; {_others(waiting, sections)}"
    where = ", ".join(sorted(set(sections.values())))
    return f"no single rank is silent: all stand in {where}"


def _others(waiting: set[int], sections: dict[int, str]) -> str:
    if not waiting:
        return "nobody waits for it in a reduction"
    section = sections[min(waiting)]
    where = f"a collective of {section}" if section in WORKING else section
    return f"{_ranks(waiting)} waiting in {where}"


def _is_waiting(report: str) -> bool:
    """Whether a rank stands where it waits for others, by its section or by its main thread's last call."""
    if _section(report) not in WORKING:
        return True
    # The thread that dumps is "Current thread"; the main one is the last.
    calls = report.rpartition("Thread 0x")[2].splitlines()[1:2]
    return any(_COLLECTIVE.search(call) for call in calls)


def _ranks(ranks: Collection[int]) -> str:
    return f"{name_some(sorted(ranks))} {'is' if len(ranks) == 1 else 'are'}"


def _section(report: str) -> str:
    return report.partition(": in ")[2].partition(",")[0]

"""Notices a rank of a script that waits for others in vain, and tells where every rank stands.

The ranks of a user's loop may be anywhere for as long as they like. What shows that they do not match (one
left its loop, left a step out, calls something else) is that some wait in a call of ``run`` and others do
not come. So the time in such calls is watched, and nothing else.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread, main_thread

from hvdtrain.errors import ExitCode, InputError
from hvdtrain.train.autopsy import has_begun, name_some, put_together
from hvdtrain.train.awake import Awake
from hvdtrain.train.settings import DEFAULT_STALL_S

_LOOK_EVERY_S = 0.5
# Until the first step, where nobody chose a limit; a job's stall.start_s is the same.
_FIRST_S = 900.0
# Once a rank is at its end of the run, no call that waits for all ranks can be completed.
_ENDED_S = 10.0
END = "the end of the run"
_HEAD = re.compile(r"rank \d+: (waits in )?(.*), for \d+ s$")
# Whose lines are not the user's.
_FOREIGN = (
    str(Path(__file__).parent.parent) + os.sep,
    *(sysconfig.get_paths()[kind] + os.sep for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
)


@dataclass(frozen=True, slots=True)
class _Place:
    """In which call of ``run`` this rank is, since when, and for how long it may be.

    Attributes:
        needs_all: Whether it waits for all ranks there: one that is at its end of the run then never comes.
    """

    call: str
    since_s: float
    limit_s: float
    needs_all: bool = True


class Waiting:
    """Watches how long this rank is in calls in which it waits for others.

    Args:
        limit_s: How long it may be in one call.
        rank: This rank.
        size: Number of ranks; a rank alone is not watched.
        folder: Where reports go, a name that only this run has on the host that all ranks share; it is made
            when there is something to report. None where ranks share no host: each tells of itself.
        clock: Seconds that only go forward.
        end: Ends this process with a code.
    """

    def __init__(
        self,
        limit_s: float,
        rank: int,
        size: int,
        folder: Path | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._limit_s, self._rank, self._size, self._folder = limit_s, rank, size, folder
        self._clock, self._end = clock, end
        self._ended = folder.with_name(f"{folder.name}.ended") if folder else None
        # Where this rank was when it saw that another one had ended, and how long it had been there.
        self._seen: tuple[_Place, float] | None = None
        self._place = _Place("", clock(), limit_s)
        self._num_steps, self._is_apart, self._is_working = 0, False, False
        self._over = Event()
        if size > 1:
            Thread(target=self._watch, daemon=True, name="hvdtrain-waiting").start()

    @contextmanager
    def call(self, name: str) -> Iterator[None]:
        """This rank is in a collective call, or in what is part of one.

        Raises:
            InputError: The other ranks are not to come: they wait at the end of ``apart``.
        """
        if self._is_apart:
            raise InputError(
                f"{name} stands inside of run.alone(), where the ranks do not meet",
                do="call it before or after the block, on all ranks",
            )
        if self._place.call:
            yield
            return
        # The first backward pass may compile the model: no rank waits for another then.
        is_first = not self._num_steps and self._limit_s == DEFAULT_STALL_S
        with self._at(name, _FIRST_S if is_first else self._limit_s):
            yield

    @contextmanager
    def patient(self, name: str) -> Iterator[None]:
        """All ranks are in this call, which they have met in, and wait for what rank 0 does there."""
        with self._at(name, float("inf"), needs_all=False):
            yield

    @contextmanager
    def working(self) -> Iterator[None]:
        """This rank is in a part of a call in which it waits for nobody."""
        self._is_working = True
        try:
            yield
        finally:
            self._is_working = False

    @contextmanager
    def at_end(self) -> Iterator[None]:
        """This rank is at its end of the run: who waits for it elsewhere is soon told so."""
        with suppress(OSError):
            if self._ended and self._size > 1:
                self._ended.touch()
        try:
            with self.patient(END):
                yield
        finally:
            self.forget_end()

    def forget_end(self) -> None:
        """Nobody needs to hear any more that a rank is at its end: all are, or all will be ended."""
        with suppress(OSError):
            if self._ended and self._size > 1:
                self._ended.unlink(missing_ok=True)

    @contextmanager
    def apart(self, meet: Callable[[], object]) -> Iterator[None]:
        """The ranks go different ways; at the end they ``meet``, however long that takes."""
        self._is_apart = True
        try:
            yield
        finally:
            self._is_apart = False
        with self._at("run.alone", float("inf")):
            meet()

    @contextmanager
    def _at(self, name: str, limit_s: float, *, needs_all: bool = True) -> Iterator[None]:
        self._place = _Place(name, self._clock(), limit_s, needs_all)
        try:
            yield
        finally:
            self._place = _Place("", self._clock(), limit_s)

    def stepped(self) -> None:
        """A call of ``run.step`` is done."""
        self._num_steps += 1

    def close(self) -> None:
        """Ends the watch."""
        self._over.set()

    def _watch(self) -> None:
        awake = Awake(self._clock, _LOOK_EVERY_S)
        while not self._over.wait(_LOOK_EVERY_S):
            place = self._place
            stands_s = awake.look(place, place.since_s)
            is_late = bool(place.call) and (stands_s > place.limit_s or self._is_in_vain(place, stands_s))
            # Another rank that gave up ends this one too: it tells where it stands before.
            if (is_late and place is self._place) or (self._folder and has_begun(self._folder)):
                self._report(place)
                return

    def _is_in_vain(self, place: _Place, stands_s: float) -> bool:
        """Whether this rank has waited for one that is at its end of the run since it was seen there."""
        if not place.needs_all or self._is_working or self._ended is None or not self._ended.exists():
            self._seen = None
            return False
        if self._seen is None or self._seen[0] is not place:
            self._seen = (place, stands_s)
        return stands_s - self._seen[1] > _ENDED_S

    def _report(self, place: _Place) -> None:
        at = _own_line(self._rank)
        steps = "1 step" if self._num_steps == 1 else f"{self._num_steps} steps"
        stands = f"waits in {place.call} at {at}" if place.call else f"its own code at {at}"
        head = f"rank {self._rank}: {stands} after {steps}, for {self._clock() - place.since_s:.0f} s"
        told = self._told(head)
        if told:
            sys.stderr.write(f"hvdtrain: error: stalled: {told}\n")
            sys.stderr.flush()
        self.forget_end()
        self._end(int(ExitCode.STALLED))

    def _told(self, head: str) -> str:
        alone = f"{head} (the ranks share no folder: each tells of itself)"
        if self._folder is None:
            return alone
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        except OSError:
            return alone
        return put_together(self._folder, self._rank, head, lambda reports: verdict_on(reports, self._size))


def verdict_on(reports: Mapping[int, str], size: int) -> str:
    """Which ranks the others wait for, or how their calls differ, in a line.

    Args:
        reports: By rank; the first line tells where the rank stands.
        size: Number of ranks.
    """
    missing = [rank for rank in range(size) if rank not in reports]
    waiting: dict[str, list[int]] = {}
    working: dict[str, list[int]] = {}
    for rank in sorted(reports):
        matched = _HEAD.match(reports[rank].partition("\n")[0])
        waits, place = matched.groups() if matched else (None, "an unknown place")
        (waiting if waits else working).setdefault(place, []).append(rank)
    told = [f"{_are(missing)} silent: no report, stopped or gone"] if missing else []
    told += [f"{_are(ranks)} silent in {place}" for place, ranks in working.items()]
    others = [f"{_are(ranks)} waiting in {place}" for place, ranks in waiting.items()]
    if told:
        return "; ".join([*told, *others])
    if len(others) > 1:
        return f"the calls of the ranks do not match: {'; '.join(others)}"
    return f"no rank is silent: {'; '.join(others)}, so the engine or the network stands still"


def _are(ranks: list[int]) -> str:
    return f"{name_some(ranks)} {'is' if len(ranks) == 1 else 'are'}"


def _own_line(rank: int) -> str:
    """The user's line that the main thread is in."""
    frame = sys._current_frames().get(main_thread().ident or 0)
    line = f"an unknown line of rank {rank}"
    while frame is not None:
        name = frame.f_code.co_filename
        line = f"{Path(name).name}:{frame.f_lineno}"
        if not name.startswith(("<", *_FOREIGN)):
            break
        frame = frame.f_back
    return line

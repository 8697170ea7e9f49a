"""Signals that end a command by an exception, so that what it began is put in order."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

# By these sites announce the end of a job's time; by default they kill.
ANNOUNCING = (signal.SIGUSR1, signal.SIGUSR2)


@contextmanager
def ending_signals(more: Sequence[signal.Signals] = ()) -> Iterator[None]:
    """SIGTERM and SIGHUP raise ``SystemExit(128 + n)`` inside; a supervisor has handlers of its own.

    Args:
        more: Signals that do so too.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    ending = (signal.SIGTERM, signal.SIGHUP, *more)
    taken = [number for number in ending if signal.getsignal(number) != signal.SIG_IGN]
    old = {number: signal.signal(number, end) for number in taken}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)

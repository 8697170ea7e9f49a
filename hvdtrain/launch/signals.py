"""Signals that a process in the middle hands on: from the scheduler or the terminal to what it started."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

# Requests to end, and the two that sites use to announce the end of a job's time.
HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

# What asks a process to end.
ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

# What asks a rank agent to end its program softly where the launcher would answer SIGTERM otherwise: Open
# MPI's mpirun kills the ranks within 250 ms of one, but hands this signal on. By default it is ignored.
SOFT_END = signal.SIGURG

# What mpirun calls itself; that of Open MPI 5 becomes prterun.
_MPIRUNS = frozenset({"mpirun", "prterun", "mpiexec", "mpirun.real", "orterun"})


@contextmanager
def signals_to(handle: Callable[[int], None]) -> Iterator[int]:
    """Within it, each signal of ``HANDED_ON`` and ``SOFT_END`` calls ``handle(number)``; main thread only.

    Yields:
        A pipe that becomes readable on these signals and on a child's end: something for a select to wait on.
    """

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            handle(number)

    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    old_fd = signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    taken = [*HANDED_ON, SOFT_END, signal.SIGCHLD]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # nohup: it is to outlive its terminal
        taken.remove(signal.SIGHUP)
    old = {number: signal.signal(number, on_signal) for number in taken}
    try:
        yield wake
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(old_fd)
        os.close(wake)
        os.close(woken)


def mpirun_below(pid: int) -> int:
    """The mpirun among a process and its descendants; the process itself while there is none."""
    import psutil  # only the supervisor of a horovodrun needs it; every rank imports this file

    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                if one.name() in _MPIRUNS:
                    return int(one.pid)
    return pid

"""Signals that end a rank, noticed also while its main thread waits in a collective.

Python runs a signal's handler in the main thread between two of its instructions. A rank that waits for
the others is inside one, so a thread of its own hears of the signal by the wake-up descriptor.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from threading import Thread
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def end_on_signals(record: Callable[[signal.Signals, bool], None]) -> None:
    """Lets SIGTERM, SIGINT and SIGHUP be recorded and then end this process with 128 + number.

    A signal that is ignored stays ignored. One that gets another handler later is recorded only: that
    handler may never run, where the main thread waits for a rank that is gone. Main thread only.
    Processes that are forked off have the default handlers.

    Args:
        record: Called with the signal, and whether this process ends now; in a thread of its own.
    """
    heard, woken = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for number in _ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _leave_to_the_thread)
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_restore)
    Thread(target=_watch, args=(heard, record), daemon=True).start()


def _leave_to_the_thread(_number: int, _frame: FrameType | None) -> None:
    """The handler in the main thread: whoever replaces it takes the signal over."""


def _watch(heard: int, record: Callable[[signal.Signals, bool], None]) -> None:
    while data := os.read(heard, 64):
        for number in data:
            if number not in _ENDING:
                continue
            is_ours = signal.getsignal(number) is _leave_to_the_thread
            try:
                record(signal.Signals(number), is_ours)
            finally:
                if is_ours:
                    os._exit(128 + number)


def _hold() -> None:
    """A forked process must not be signalled before it has its own handlers: it shares the descriptor."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


def _restore() -> None:
    signal.set_wakeup_fd(-1)
    for number in _ENDING:
        if signal.getsignal(number) is _leave_to_the_thread:
            signal.signal(number, signal.SIG_DFL)
    _release()

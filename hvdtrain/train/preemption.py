"""Requests to end soon: signals of the scheduler, and the end of the allocation by the clock.

A rank only takes note. All ranks agree with the next step's reduction, save, and end together.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType


class Watch:
    """Takes note of signals and of a deadline.

    Args:
        signals: Names, such as ``SIGTERM``; what handled them before is called too.
        deadline_s: When to ask to end, in seconds since 1970; None for never.
        clock: Gives that time now.
    """

    def __init__(
        self,
        signals: Sequence[str] = (),
        deadline_s: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._deadline_s, self._clock = deadline_s, clock
        self._heard: signal.Signals | None = None
        self._before = {signal.Signals[name]: signal.getsignal(signal.Signals[name]) for name in signals}
        for number in self._before:
            signal.signal(number, self._note)

    def is_asked(self) -> bool:
        """Whether this rank was asked to end."""
        return bool(self.reason)

    @property
    def reason(self) -> str:
        """What asked this rank; empty where nothing did."""
        if self._heard is not None:
            return self._heard.name
        if self._deadline_s is not None and self._clock() >= self._deadline_s:
            return "the allocation is about to end"
        return ""

    def close(self) -> None:
        """Gives the signals back to what handled them before."""
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._heard = signal.Signals(number)
        before = self._before.get(self._heard)
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)


def deadline(env: Mapping[str, str], margin_s: float) -> float | None:
    """When to end by the clock: ``margin_s`` before the allocation does, seconds since 1970; None if unknown.

    ``SLURM_JOB_END_TIME`` is Slurm's (since 23.02, sbatch(1)); ``HVDTRAIN_END_TIME`` is the same, set by the
    script of ``hvdtrain submit`` where Slurm is older, or by a site.
    """
    for name in ("HVDTRAIN_END_TIME", "SLURM_JOB_END_TIME"):
        text = env.get(name, "")
        if text.isascii() and text.isdigit() and int(text) > 0:
            return int(text) - margin_s
    return None

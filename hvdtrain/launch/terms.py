"""How a job is to end, as the supervisor is told."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class Terms:
    """How a job is asked to end, and when.

    Attributes:
        end_signal: The signal on which this launcher asks the ranks to end softly.
        timeout_s: After it the job is asked to end; None sets no limit.
        hears_beats: Whether the agents were told to say something all the time, as on several hosts.
        deaf_to: Signals that the launcher hands on to nobody and that would end it.
        is_wrapper: Whether signals are for the mpirun that the command starts, not for itself.
    """

    end_signal: signal.Signals = signal.SIGTERM
    timeout_s: float | None = None
    hears_beats: bool = False
    deaf_to: frozenset[signal.Signals] = frozenset()
    is_wrapper: bool = False

"""When a failed training starts again from its last checkpoint, and when it does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hvdtrain.errors import ExitCode

if TYPE_CHECKING:
    from hvdtrain.launch.supervise import JobOutcome

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


class Restarts:
    """Decides after each failure; a failure that comes back without a new checkpoint ends the job.

    Args:
        most: Restarts that the user allows.
        checkpoints: The run's folder of checkpoints.
        pause: Waits for some seconds.
    """

    def __init__(self, most: int, checkpoints: Path, pause: Callable[[float], None] = time.sleep) -> None:
        self._left, self._checkpoints, self._pause = most, checkpoints, pause
        self._pause_s = _FIRST_PAUSE_S
        self._last: tuple[int, str] | None = None

    def again(self, outcome: JobOutcome, error: str) -> str:
        """What to tell before the job starts again, after a pause; empty where it does not.

        Args:
            outcome: How the ranks ended.
            error: What was told of it.
        """
        from hvdtrain.train.store import newest_whole

        is_final = outcome.exit_code in (ExitCode.USAGE, ExitCode.PREEMPTED, ExitCode.DONE)
        if self._left <= 0 or is_final or outcome.interrupted:
            return ""
        newest, _ = newest_whole(self._checkpoints)
        step = newest.step if newest else 0
        seen = (step, error)
        if seen == self._last:
            return ""
        self._last = seen
        self._left -= 1
        self._pause(self._pause_s)
        self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s)
        where = f"from step {step}" if newest else "from the beginning: there is no checkpoint yet"
        return f"starting again {where}; {self._left} restart{'s' if self._left != 1 else ''} left"

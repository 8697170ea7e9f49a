"""Stays with a job in the queue: its output as it grows, and its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hvdtrain.launch.queue import UNKNOWN, JobState, find_jobs, log_of

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 5.0  # between two questions to Slurm, which many users ask
_LOST_AFTER = 5  # answers in a row in which nobody knows the job


@dataclass
class Tail:
    """The output files of a job, read as they grow."""

    job: str
    environ: Mapping[str, str]
    show: Callable[[bytes], None]
    files: list[Path] = field(default_factory=list)
    _read: dict[Path, int] = field(default_factory=dict)

    def pass_on(self) -> None:
        """Shows what was written since the last call."""
        if not self.files:
            self.files = [Path(name) for name in log_of(self.job, self.environ)]
        for path in self.files:
            try:
                with path.open("rb") as file:
                    file.seek(self._read.get(path, 0))
                    data = file.read()
            except OSError:
                continue  # the job has not begun, or another node's disk holds it
            if data and len(self.files) > 1:
                self.show(f"==> {path} <==\n".encode())
            if data:
                self._read[path] = self._read.get(path, 0) + len(data)
                self.show(data)


def follow(
    job: str,
    environ: Mapping[str, str],
    tail: Tail | None = None,
    on_state: Callable[[str], None] = lambda _: None,
) -> list[JobState]:
    """Waits until the job, or all elements of an array of jobs, ended.

    Args:
        job: The job's id.
        environ: This process's environment.
        tail: Shows its output meanwhile; None shows none.
        on_state: Gets each new state.

    Returns:
        How they ended; UNKNOWN where Slurm has forgotten the job.
    """
    pause_s, lost, last = _FIRST_PAUSE_S, 0, ""
    while True:
        found = find_jobs(job, environ)
        state = ", ".join(sorted({one.state for one in found}))
        if state != last:
            on_state(state)
            pause_s, last = _FIRST_PAUSE_S, state
        if tail is not None:
            tail.pass_on()
        lost = lost + 1 if any(one.state == UNKNOWN for one in found) else 0
        if all(one.has_ended for one in found) or lost >= _LOST_AFTER:
            return found
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.3, _LONGEST_PAUSE_S)


def joint_code(jobs: list[JobState]) -> int:
    """The exit code of all elements together: the highest, as ``sbatch --wait`` has it."""
    return max(1 if job.code is None else job.code for job in jobs)

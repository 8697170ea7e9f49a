"""Stays with a job in the queue: its output as it grows, and its end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hvdtrain.errors import ExitCode
from hvdtrain.launch.queue import UNKNOWN, JobState, NoAnswerError, ended_jobs, find_jobs, log_of

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
        with contextlib.suppress(NoAnswerError):  # elements of an array get their logs' names when they start
            named = [Path(name) for name in log_of(self.job, self.environ)]
            self.files += [path for path in named if path not in self.files]
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


@dataclass
class Elements:
    """What is known of a job, or of each element of an array of jobs.

    Slurm forgets an element some minutes after its end, while others still wait: what was seen stays.
    """

    job: str
    states: dict[str, JobState] = field(default_factory=dict)

    def take(self, found: Sequence[JobState]) -> None:
        """Takes one answer of Slurm's."""
        if self.states and [one.state for one in found] == [UNKNOWN]:
            return
        told = {one.job: one for one in found}
        # An id of several elements, 12_[4-7], is another one as soon as one of them starts.
        gone = {job for job, one in self.states.items() if "[" in job and not one.has_ended}
        gone |= {job for job, one in self.states.items() if one.state == UNKNOWN} if told else set()
        self.states = {**{job: one for job, one in self.states.items() if job not in gone}, **told}

    def close(self, ended: Sequence[JobState]) -> list[JobState]:
        """How all ended, with what accounting knows; UNKNOWN where nobody saw the end."""
        told = {one.job: one for one in ended}
        known = {job: one for job, one in self.states.items() if one.has_ended}
        lost = {job: replace(one, state=UNKNOWN) for job, one in self.states.items() if job not in known}
        if told or known:  # of an array of jobs elements are known, and no job of this id
            lost.pop(self.job, None)
        # Accounting may be behind: what was seen to end with a code did so.
        certain = {job: one for job, one in known.items() if one.code is not None}
        return list({**lost, **known, **told, **certain}.values())


def follow(
    job: str,
    environ: Mapping[str, str],
    tail: Tail | None = None,
    on_state: Callable[[str], None] = lambda _: None,
    on_trouble: Callable[[str], None] = lambda _: None,
) -> list[JobState]:
    """Waits until the job, or all elements of an array of jobs, ended.

    Args:
        job: The job's id.
        environ: This process's environment.
        tail: Shows its output meanwhile; None shows none.
        on_state: Gets each new state.
        on_trouble: Is told once that Slurm does not answer; the job is waited for all the same.

    Returns:
        How they ended; UNKNOWN where Slurm has forgotten the job.
    """
    elements = Elements(job)
    pause_s, lost, last, is_told = _FIRST_PAUSE_S, 0, "", False
    while True:
        try:
            found = find_jobs(job, environ)
        except NoAnswerError as error:
            found = []
            if not is_told:
                on_trouble(f"{error}; still waiting")
                is_told = True
        elements.take(found)
        state = ", ".join(sorted({one.state for one in found})) or last
        if state != last:
            on_state(state)
            pause_s, last = _FIRST_PAUSE_S, state
        if tail is not None:
            tail.pass_on()
        if found:
            lost = lost + 1 if any(one.state == UNKNOWN for one in found) else 0
        if (found and all(one.has_ended for one in found)) or lost >= _LOST_AFTER:
            return elements.close(ended_jobs(job, environ))
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.3, _LONGEST_PAUSE_S)


def joint_code(jobs: Sequence[JobState]) -> int:
    """The exit code of all elements together: the highest, as ``sbatch --wait`` has it."""
    return max(_code(job) for job in jobs)


def _code(job: JobState) -> int:
    if job.code is None:  # accounting is behind, or off
        return int(ExitCode.DONE if job.state == "COMPLETED" else ExitCode.FAILED)
    return job.code

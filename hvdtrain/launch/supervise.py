"""The life of a started job: what its ranks print, who failed first, how it ends.

The supervisor reads the launcher's output, in which the rank agents' messages travel (``frames``). It
knows of each rank how it ended, and so needs not guess from the launcher's exit code.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.errors import ExitCode
from hvdtrain.launch.frames import FrameReader, Message
from hvdtrain.launch.paragraphs import worth_telling
from hvdtrain.launch.signals import ENDING, signals_to
from hvdtrain.process import Command, Process, end_group, spawn

_FAIL_GRACE_S = 4.0  # what the launcher gets to end the other ranks after one failed
_KILL_GRACE_S = 2.0  # what it gets to clean up when its time is over
_DONE_GRACE_S = 30.0  # what the launcher gets to end after every rank said it was done
_TERM_GRACE_S = 30.0  # what a job gets to write a checkpoint after SIGTERM or Ctrl-C
_ORPHAN_GRACE_S = 5.0  # what the ranks get to end after the launcher did
_TOGETHER_S = 0.5  # failures that arrive within it are put in order by the hosts' clocks
_MAX_FOREIGN = 500
_SIGNALLED = 128  # what is added to a signal's number to make an exit code

# Codes of a rank that mean the same for the job; every other one is FAILED.
_KEPT_CODES = frozenset({ExitCode.USAGE, ExitCode.STALLED, ExitCode.PREEMPTED})

_HINTS = {
    -signal.SIGKILL: "probably out of memory",
    -signal.SIGSEGV: "a crash in native code",
    int(ExitCode.STALLED): "stalled",
    int(ExitCode.PREEMPTED): "preempted after a checkpoint",
    127: "the program was not found",
}
# How Python joins the tracebacks of one failure.
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


class Line(NamedTuple):
    """One line that a rank printed; ``stream`` is ``stdout`` or ``stderr``."""

    rank: int
    stream: str
    text: str


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended.

    Attributes:
        rank: The rank.
        host: Its host's own name.
        code: Exit code; negative for a signal, as Popen has it.
        time_s: When, by the host's clock, seconds since 1970.
        was_asked: Whether it was asked to end before: then it is no cause of a failure.
        tail: The last lines of its stderr; empty if it succeeded.
    """

    rank: int
    host: str
    code: int
    time_s: float
    was_asked: bool = False
    tail: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended.

    Attributes:
        exit_code: 0, or what the command should end with (see ``ExitCode``; 128+n for a signal n).
        size: Number of ranks that were asked for.
        first_failure: The rank that failed first; None if none said so.
        done: Ranks that ended with code 0.
        launcher_code: What the launcher ended with; negative for a signal.
        launcher_lines: What the launcher itself said, without what it says of every failure.
        interrupted: The signal that ended the job from outside, 0 if none did.
    """

    exit_code: int
    size: int
    first_failure: RankEnd | None = None
    done: frozenset[int] = frozenset()
    launcher_code: int = 0
    launcher_lines: tuple[str, ...] = ()
    interrupted: int = 0


def supervise(
    cmd: Command,
    *,
    size: int,
    on_line: Callable[[Line], None],
    on_event: Callable[[int, dict[str, Any]], None],
    base_env: Mapping[str, str] | None = None,
    end_signal: signal.Signals = signal.SIGTERM,
) -> JobOutcome:
    """Starts a launcher's command and stays until the job and all its processes on this host ended.

    After the first failure the job is ended within 10 s. SIGTERM and Ctrl-C are handed on once and
    give the ranks time to end; the second one kills. Must run in the main thread.

    Args:
        cmd: A launcher's command around rank agents.
        size: Number of ranks that it starts.
        on_line: Gets each line of a rank.
        on_event: Gets (rank, event) for each event line of a rank.
        base_env: The environment that ``cmd`` adds to; None takes this process's.
        end_signal: What asks this launcher to end the ranks softly.

    Raises:
        FileNotFoundError: The launcher does not exist.
    """
    process = spawn(cmd, base_env=base_env, death_signal=signal.SIGTERM)
    job = _Job(process, size, on_line, on_event, end_signal)
    try:
        with signals_to(job.interrupt) as wake:
            job.read(wake)
    finally:
        end_group(process.pid, grace_s=_KILL_GRACE_S)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
    return job.outcome()


def failure_text(outcome: JobOutcome, log_dir: Path | None = None) -> str:
    """What to tell of a job that failed: who, then its last words once, then where more stands."""
    first = outcome.first_failure
    if first is None:
        missing = sorted(set(range(outcome.size)) - outcome.done)
        ranks = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        code = outcome.launcher_code
        if outcome.exit_code == ExitCode.PREEMPTED:
            return "the job was preempted after a checkpoint; run it again to go on"
        if outcome.interrupted:
            return f"the job was ended by {signal.Signals(outcome.interrupted).name}"
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        silent = f" before rank {ranks} said it was done" if missing else ""
        return "\n".join([f"the launcher {how}{silent}", *outcome.launcher_lines])
    lines = [f"rank {first.rank} on host {first.host} failed: {_how(first.code)}", *_last_words(first.tail)]
    if log_dir is not None:
        lines.append(f"log: {log_dir / f'rank-{first.rank}.log'}")
    return "\n".join(lines)


def tagged(line: Line, size: int) -> str:
    """The line as it is shown: with its rank where there is more than one."""
    return line.text if size == 1 else f"[{line.rank}] {line.text}"


@dataclass
class _Job:
    """What is known of a running job."""

    process: Process
    size: int
    on_line: Callable[[Line], None]
    on_event: Callable[[int, dict[str, Any]], None]
    end_signal: signal.Signals
    ends: dict[int, RankEnd] = field(default_factory=dict)
    failures: list[tuple[float, RankEnd]] = field(default_factory=list)
    foreign: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_FOREIGN))
    interrupted: int = 0
    kill_at: float = float("inf")

    def read(self, wake: int) -> None:
        """Reads both pipes until the launcher closed them or its time is over."""
        readers = {}
        selector = selectors.PollSelector()  # holds no descriptor of its own
        selector.register(wake, selectors.EVENT_READ)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            selector.register(pipe.fileno(), selectors.EVENT_READ)
            readers[pipe.fileno()] = FrameReader()
        while readers:
            for key, _ in selector.select(None if self.kill_at == float("inf") else 0.05):
                data = os.read(key.fd, 1 << 16)
                if key.fd == wake:
                    continue
                for item in readers[key.fd].feed(data) if data else readers[key.fd].close():
                    self.take(item)
                if not data:
                    selector.unregister(key.fd)
                    del readers[key.fd]
            if self.process.poll() is not None:
                # Agents that lost their launcher hold the pipes: they notice, and end their programs.
                self.kill_at = min(self.kill_at, time.monotonic() + _ORPHAN_GRACE_S)
            if time.monotonic() > self.kill_at:
                end_group(self.process.pid, grace_s=_KILL_GRACE_S)
                if self.process.poll() is not None:
                    return

    def take(self, item: Message | str) -> None:
        """Takes one message of an agent, or one line of anybody else."""
        if isinstance(item, str):
            self.foreign.append(item)
            return
        content = item.content
        if "event" in content:
            self.on_event(item.rank, content["event"])
        elif "end" in content:
            self._end(item.rank, content["end"])
        else:
            for stream, text in content.items():
                self.on_line(Line(item.rank, stream, text))

    def _end(self, rank: int, end: Mapping[str, Any]) -> None:
        told = RankEnd(rank, end["host"], end["code"], end["time"], end["asked"], tuple(end.get("tail", ())))
        self.ends[rank] = told
        if told.code and not told.was_asked:
            self.failures.append((time.monotonic(), told))
            self.kill_at = min(self.kill_at, time.monotonic() + _FAIL_GRACE_S)
        elif len(self.ends) == self.size:
            self.kill_at = min(self.kill_at, time.monotonic() + _DONE_GRACE_S)

    def interrupt(self, number: int) -> None:
        """Hands on a signal that this process got; the second one that asks to end kills."""
        if number in ENDING:
            if self.interrupted:
                self.kill_at = 0.0
                return
            self.interrupted = number
            self.kill_at = min(self.kill_at, time.monotonic() + _TERM_GRACE_S)
            number = self.end_signal
            # Not print: a signal may come while this very buffer is written.
            os.write(2, b"hvdtrain: asking the ranks to end; the same signal again kills them\n")
        if self.process.poll() is None:
            os.kill(self.process.pid, number)

    def outcome(self) -> JobOutcome:
        """Puts together what became of the job; every process of it has ended."""
        code = self.process.returncode
        done = frozenset(rank for rank, end in self.ends.items() if end.code == 0)
        first = _first(self.failures)
        said = worth_telling(self.foreign)
        exit_code = self._exit_code(first, len(done) == self.size)
        return JobOutcome(exit_code, self.size, first, done, code, said, self.interrupted)

    def _exit_code(self, first: RankEnd | None, all_done: bool) -> int:
        if all_done:
            return ExitCode.DONE
        if first is not None:
            return _job_code(first.code)
        if any(end.code == ExitCode.PREEMPTED for end in self.ends.values()):
            return ExitCode.PREEMPTED
        if self.interrupted:
            return _SIGNALLED + self.interrupted
        code = self.process.returncode
        return code if _SIGNALLED < code <= _SIGNALLED + signal.SIGRTMAX else _job_code(min(code, 0))


def _job_code(code: int) -> int:
    """The job's exit code for a rank's that was no success."""
    if code < 0:
        return _SIGNALLED - code
    return code if code in _KEPT_CODES else ExitCode.FAILED


def _first(failures: list[tuple[float, RankEnd]]) -> RankEnd | None:
    """The first failure by arrival; the hosts' clocks put those in order that arrived together."""
    if not failures:
        return None
    together = [end for arrived_s, end in failures if arrived_s - failures[0][0] <= _TOGETHER_S]
    return min(together, key=lambda end: end.time_s)


def _how(code: int) -> str:
    hint = f" ({_HINTS[code]})" if code in _HINTS else ""
    return f"exit code {code}{hint}" if code >= 0 else f"killed by signal {-code}{hint}"


def _last_words(tail: tuple[str, ...]) -> tuple[str, ...]:
    """The last traceback in a rank's stderr, with those that led to it, or else the last lines."""
    starts = [i for i, line in enumerate(tail) if line.startswith("Traceback (most recent call last):")]
    if not starts:
        return tail[-20:]
    start = starts.pop()
    while starts and any(line.startswith(_CHAINED) for line in tail[starts[-1] : start]):
        start = starts.pop()
    return tail[start:]

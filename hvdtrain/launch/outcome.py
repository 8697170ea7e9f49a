"""How a job ended: the verdict, and what to tell of it."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hvdtrain.errors import ExitCode

# Codes of a rank that mean the same for the job.
_KEPT_CODES = frozenset({ExitCode.USAGE, ExitCode.GATE, ExitCode.STALLED, ExitCode.PREEMPTED})
NOT_FOUND = 127  # a program that does not exist, as shells have it
SIGNALLED = 128  # what is added to a signal's number to make an exit code
_HINTS = {
    -signal.SIGKILL: "probably out of memory",
    -signal.SIGSEGV: "a crash in native code",
    int(ExitCode.STALLED): "stalled",
    int(ExitCode.PREEMPTED): "preempted after a checkpoint",
    NOT_FOUND: "the program was not found",
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
        reason: Why the supervisor itself ended the job; empty if it did not.
    """

    exit_code: int
    size: int
    first_failure: RankEnd | None = None
    done: frozenset[int] = frozenset()
    launcher_code: int = 0
    launcher_lines: tuple[str, ...] = ()
    interrupted: int = 0
    reason: str = ""


def failure_text(outcome: JobOutcome, log_dir: Path | None = None) -> str:
    """What to tell of a job that failed: who, then its last words once, then where more stands."""
    first = outcome.first_failure
    if outcome.reason and (first is None or outcome.exit_code == ExitCode.USAGE):
        return outcome.reason
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


def job_code(code: int) -> int:
    """The job's exit code for a rank's that was no success."""
    if code < 0:
        return SIGNALLED - code
    if code == NOT_FOUND:
        return ExitCode.USAGE
    return code if code in _KEPT_CODES or _signal_of(code) else ExitCode.FAILED


def tagged(line: Line, size: int) -> str:
    """The line as it is shown: with its rank where there is more than one."""
    return line.text if size == 1 else f"[{line.rank}] {line.text}"


def _how(code: int) -> str:
    if number := _signal_of(code):
        hint = f" ({_HINTS[-number]})" if -number in _HINTS else ""
        shell = f"exit code {code}, " if code > 0 else ""
        return f"{shell}killed by signal {number}{hint}"
    return f"exit code {code}" + (f" ({_HINTS[code]})" if code in _HINTS else "")


def _signal_of(code: int) -> int:
    """The signal that ended a program; 0 for none. Shells and container runtimes tell it as 128+n."""
    return -code if code < 0 else code - SIGNALLED if SIGNALLED < code <= SIGNALLED + signal.SIGRTMAX else 0


def _last_words(tail: tuple[str, ...]) -> tuple[str, ...]:
    """The last traceback in a rank's stderr, with those that led to it, or else the last lines."""
    starts = [i for i, line in enumerate(tail) if line.startswith("Traceback (most recent call last):")]
    if not starts:
        return tail[-20:]
    start = starts.pop()
    while starts and any(line.startswith(_CHAINED) for line in tail[starts[-1] : start]):
        start = starts.pop()
    return tail[start:]

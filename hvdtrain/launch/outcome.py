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
_AGENTS_WORD = "hvdtrain: cannot start "
_TRACEBACK = "Traceback (most recent call last):"
_CONTEXT_LINES = 20  # of a failed rank's stderr, where nothing says which of it tells why
_MAX_OTHERS = 8  # ranks that failed after the first and that are told of one by one
_MAX_ERROR = 200  # characters of what is told of each


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
        last_words: Those of them that tell why it failed, such as a traceback: they were not shown before, or
            long before. Empty where nothing told it.
    """

    rank: int
    host: str
    code: int
    time_s: float
    was_asked: bool = False
    tail: tuple[str, ...] = ()
    last_words: tuple[str, ...] = ()

    @property
    def error(self) -> str:
        """The line of its last words that names the error; empty where there is none."""
        starts = [i for i, line in enumerate(self.last_words) if line.startswith(_TRACEBACK)]
        lines = self.last_words[starts[-1] + 1 :] if starts else self.last_words
        return next((line for line in lines if line.strip() and not line.startswith((" ", "\t"))), "")


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended.

    Attributes:
        exit_code: 0, or what the command should end with (see ``ExitCode``; 128+n for a signal n).
        size: Number of ranks that were asked for.
        first_failure: The rank that failed first; None if none said so.
        done: Ranks that ended with code 0.
        left: Those of them that had ended before the first failure, or before the launcher ended the others.
        launcher_code: What the launcher ended with; negative for a signal.
        launcher_lines: What the launcher itself said, without what it says of every failure.
        interrupted: The signal that ended the job from outside, 0 if none did.
        reason: Why the supervisor itself ended the job; empty if it did not.
        other_failures: The other ranks that failed, in their order: not those that were asked to end.
    """

    exit_code: int
    size: int
    first_failure: RankEnd | None = None
    done: frozenset[int] = frozenset()
    launcher_code: int = 0
    launcher_lines: tuple[str, ...] = ()
    interrupted: int = 0
    reason: str = ""
    other_failures: tuple[RankEnd, ...] = ()
    left: tuple[int, ...] = ()

    @property
    def is_ended_by_reason(self) -> bool:
        """Whether the reason is what to tell, not a rank's failure."""
        return bool(self.reason) and (self.first_failure is None or self.exit_code == ExitCode.USAGE)


def failure_text(outcome: JobOutcome, log_dir: Path | None = None) -> str:
    """What to tell of a job that failed: who, then its last words once, then where more stands."""
    first = outcome.first_failure
    if outcome.is_ended_by_reason:
        return outcome.reason
    if outcome.exit_code == ExitCode.PREEMPTED:
        return _preempted(outcome)
    if first is None:
        missing = sorted(set(range(outcome.size)) - outcome.done)
        ranks = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        code = outcome.launcher_code
        if outcome.interrupted:
            return f"the job was ended by {signal.Signals(outcome.interrupted).name}"
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        silent = f" before rank {ranks} said it was done" if missing else ""
        return "\n".join([f"the launcher {how}{silent}", *_left(outcome), *outcome.launcher_lines])
    lines = [f"rank {first.rank} on host {first.host} failed: {how_it_ended(first.code)}", *_left(outcome)]
    context = () if first.last_words else _context(first.tail)
    # What the agent says of a program that it could not start was not shown before.
    is_new = not context or context[0].startswith(_AGENTS_WORD)
    lines += first.last_words or [*([] if is_new else ["what it said last on stderr:"]), *context]
    if log_dir is not None:
        lines.append(f"log: {log_dir / f'rank-{first.rank}.log'}")
    return "\n".join([*lines, *_others(outcome.other_failures)])


def _left(outcome: JobOutcome) -> list[str]:
    """Who had ended well before: where ranks need each other, that is why the others failed."""
    if not outcome.left:
        return []
    ranks = ", ".join(map(str, outcome.left[:8])) + (", ..." if len(outcome.left) > 8 else "")
    return [f"rank {ranks} had ended with code 0 before that, while others were at work"]


def _preempted(outcome: JobOutcome) -> str:
    """That the ranks saved and ended, which is no failure, and who did not."""
    lines = ["the job was preempted after a checkpoint; run it again to go on"]
    ends = [outcome.first_failure, *outcome.other_failures] if outcome.first_failure else []
    lines += next((list(end.last_words) for end in ends if end.code == ExitCode.PREEMPTED), [])
    return "\n".join([*lines, *_others(tuple(end for end in ends if end.code != ExitCode.PREEMPTED))])


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


def how_it_ended(code: int) -> str:
    """An exit code, negative for a signal, in words."""
    if number := _signal_of(code):
        hint = f" ({_HINTS[-number]})" if -number in _HINTS else ""
        shell = f"exit code {code}, " if code > 0 else ""
        return f"{shell}killed by signal {number}{hint}"
    return f"exit code {code}" + (f" ({_HINTS[code]})" if code in _HINTS else "")


def _signal_of(code: int) -> int:
    """The signal that ended a program; 0 for none. Shells and container runtimes tell it as 128+n."""
    return -code if code < 0 else code - SIGNALLED if SIGNALLED < code <= SIGNALLED + signal.SIGRTMAX else 0


def _others(ends: tuple[RankEnd, ...]) -> list[str]:
    """Who failed after the first, a line each: often only because the first one did."""
    if not ends:
        return []
    lines = ["1 other rank failed too:" if len(ends) == 1 else f"{len(ends)} other ranks failed too:"]
    for end in ends[:_MAX_OTHERS]:
        error = f": {end.error[:_MAX_ERROR]}" if end.error else ""
        lines.append(f"  rank {end.rank} on host {end.host}: {how_it_ended(end.code)}{error}")
    more = len(ends) - _MAX_OTHERS
    return [*lines, f"  and {more} more"] if more > 0 else lines


def _context(tail: tuple[str, ...]) -> tuple[str, ...]:
    """The last lines of a rank's stderr, without tracebacks that it survived: they were no reason."""
    begin = 0
    for i, line in enumerate(tail):
        if line.startswith(_TRACEBACK):
            begin = _end_of_traceback(tail, i)
    return tail[begin:][-_CONTEXT_LINES:]


def _end_of_traceback(lines: tuple[str, ...], start: int) -> int:
    """The index behind the line that names the exception."""
    for i in range(start + 1, len(lines)):
        if lines[i].strip() and not lines[i].startswith((" ", "\t")):
            return i + 1
    return len(lines)

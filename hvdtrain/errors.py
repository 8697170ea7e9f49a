"""The error tree and the exit codes.

Every error that a user can cause or mend derives from ``HvdtrainError`` and
carries the exit code that the process ends with. The command line prints its
one line and no traceback; anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a process of hvdtrain ends with; the README documents these for pipelines."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    GATE = 3
    STALLED = 4
    PREEMPTED = 75


class HvdtrainError(Exception):
    """Base of every error that is reported as one line."""

    exit_code: ExitCode = ExitCode.FAILED


class InputError(HvdtrainError):
    """The user's input is wrong: says what, where, what is legal and what to do.

    Args:
        what: What was wrong, with the offending value.
        where: Where it stands, for example ``job.yaml:3`` or ``--set optimizer.lr``.
        legal: What would be accepted, without a leading "legal:".
        do: What to do, as an imperative.
    """

    exit_code = ExitCode.USAGE

    def __init__(self, what: str, *, where: str = "", legal: str = "", do: str = "") -> None:
        self.what, self.where, self.legal, self.do = what, where, legal, do
        line = f"{where}: {what}" if where else what
        parts = [line, f"legal: {legal}" if legal else "", do]
        # One line whatever the parts hold: a value with a newline must not split the message.
        super().__init__("; ".join(" ".join(part.split()) for part in parts if part))


class BuildError(HvdtrainError):
    """A build failed after it started; the message names the log and the remedy."""


class LaunchError(HvdtrainError):
    """The ranks could not be started, or ended in a way that is no success."""


class TrainingError(HvdtrainError):
    """Training ended without a result for a reason that has a name."""


class AgreedError(TrainingError):
    """One that all ranks raise, in the same step."""


class UnmatchedError(AgreedError):
    """The ranks are in different calls, in which they would wait for each other for ever."""

    exit_code = ExitCode.STALLED


class Preempted(HvdtrainError):  # noqa: N818 - a request that was met
    """The run was asked to end and saved where it was: run again to go on.

    Args:
        step: Optimizer steps taken, and saved.
        reason: What asked: a signal's name, or the end of the allocation.
    """

    exit_code = ExitCode.PREEMPTED

    def __init__(self, step: int, reason: str) -> None:
        self.step, self.reason = step, reason
        told = reason or "another rank was asked to end"
        super().__init__(f"preempted after step {step} ({told}); a checkpoint holds it, run again to go on")

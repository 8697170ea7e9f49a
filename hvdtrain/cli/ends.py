"""How a training ended: what is recorded and what is told."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdtrain.errors import ExitCode

if TYPE_CHECKING:
    from hvdtrain.cli.progress_view import LineView
    from hvdtrain.launch.supervise import JobOutcome
    from hvdtrain.train.rundir import RunDirectory


@dataclass(frozen=True)
class End:
    """What is told of a job that failed: its exit code, the error in a line, and all that is known."""

    code: int
    error: str
    text: str


def failed(outcome: JobOutcome, log_dir: Path | None) -> End:
    """What to tell of ranks that failed; ``log_dir`` holds their logs, None where they are not kept."""
    from hvdtrain.launch.supervise import failure_text
    from hvdtrain.train.launching import own_error

    line = own_error(outcome.first_failure.tail) if outcome.first_failure else ""
    known = line or failure_text(outcome, log_dir=log_dir)
    text = f"hvdtrain: error: {line}" if line else f"hvdtrain: {known}"
    return End(outcome.exit_code or int(ExitCode.FAILED), known, text)


def settle(outcome: JobOutcome, run: RunDirectory, view: LineView) -> End:
    """Records why the job failed; one whose input was wrong leaves no directory behind.

    A run that never took a step leaves what was in its directory before.
    """
    code = outcome.exit_code or int(ExitCode.FAILED)
    if code == ExitCode.PREEMPTED and (told := _preempted(run)):
        return End(code, told, f"hvdtrain: {told}")
    is_discarded = run.replaces or (code == ExitCode.USAGE and not view.started)
    end = failed(outcome, None if is_discarded else run.logs)
    if run.replaces:
        end = replace(end, text=f"{end.text}\nhvdtrain: note: {run.path} holds the run that it held before")
    if is_discarded:
        run.discard()
    else:
        with suppress(OSError):  # the disk may be what failed
            run.write_status("failed", exit_code=code, error=_in_a_line(outcome, end))
    return end


def _in_a_line(outcome: JobOutcome, end: End) -> str:
    """Who failed, and of what: whoever reads the run's state has no terminal with the rest."""
    first, line = outcome.first_failure, end.error.splitlines()[0]
    error = first.error.removeprefix("hvdtrain: error: ") if first else ""
    return line if outcome.is_ended_by_reason or error in line else f"{line}: {error}"


def _preempted(run: RunDirectory) -> str:
    """What to tell of a run that saved and ended because it was asked to; empty where it did not."""
    from hvdtrain.train.replaced import status_of

    status = status_of(run.path)
    if status.get("state") != "preempted":
        return ""
    reason = status.get("reason") or "another rank was asked to end"
    return f"preempted after step {status.get('step')} ({reason}); run again with --resume to go on"


def tell(end: End, as_json: bool) -> int:
    """Tells a failure; returns the exit code."""
    with suppress(OSError):  # the terminal may be gone
        print(end.text, file=sys.stderr, flush=True)
    if as_json:
        print(json.dumps({"schema": 1, "error": end.error, "exit_code": end.code}))
    return end.code


def show_result(result: dict[str, Any], as_json: bool) -> None:
    """The result document, or its numbers in a line."""
    if as_json:
        print(json.dumps(result))
        return
    from hvdtrain.cli.progress_view import counted

    accuracy, loss = (
        f"{result[name]:.4f}" if result[name] is not None else "nan" for name in ("accuracy", "loss")
    )
    print(
        f"accuracy {accuracy}  loss {loss}  "
        f"{result['samples_per_s']:.0f} samples/s on {counted(result['size'], 'rank')} "
        f"with {result['backend']}  "
        f"-> {result['run_dir']}"
    )

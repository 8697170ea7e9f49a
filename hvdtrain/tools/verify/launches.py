"""Launches the runs that are compared, through the launcher that trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hvdtrain.errors import ExitCode, HvdtrainError
from hvdtrain.launch.job import choose_launcher, launch_job
from hvdtrain.launch.machine import local_plan
from hvdtrain.launch.outcome import JobOutcome, failure_text
from hvdtrain.launch.plan import LaunchPlan
from hvdtrain.tools.verify.request import Request, Run
from hvdtrain.train.launching import own_error, rank_program

# Named here and in train.record_rank, which needs torch to be imported.
_PROGRAM = "hvdtrain.train.record_rank"
_FOLDER = "HVDTRAIN_RECORD_DIR"
_STEPS = "HVDTRAIN_RECORD_STEPS"
_NUDGE = "HVDTRAIN_RECORD_NUDGE"


class RunFailedError(HvdtrainError):
    """A run ended before its last step.

    Attributes:
        text: All that is known of it, several lines.
        code: What the command ends with.
    """

    def __init__(self, run: Run, outcome: JobOutcome) -> None:
        line = own_error(outcome.first_failure.tail) if outcome.first_failure else ""
        self.text = "" if line else failure_text(outcome)
        self.code = outcome.exit_code or int(ExitCode.FAILED)
        super().__init__(f"{run.text}: {line or self.text.splitlines()[0]}")


@dataclass(frozen=True)
class Launches:
    """Plans of all runs of a request, checked.

    Attributes:
        request: What is verified.
        plans: One for each number of ranks.
        launcher: Its name, or ``auto``.
    """

    request: Request
    plans: Mapping[int, LaunchPlan]
    launcher: str

    def record(self, run: Run, folder: Path, *, nudge: float = 0.0) -> None:
        """Launches one run, which leaves its record in an empty folder.

        Args:
            run: One of the request's.
            folder: Where rank 0 writes.
            nudge: Relative change of every parameter before the first step.

        Raises:
            RunFailedError: It did not come to its end.
        """
        program, env = rank_program(self.request.job_of(run), None, self.request.import_path)
        plan = replace(
            self.plans[run.size],
            program=(*program[:-1], _PROGRAM),
            env={**env, _FOLDER: str(folder), _STEPS: str(self.request.steps), _NUDGE: str(nudge)},
        )
        outcome = launch_job(
            plan,
            on_line=lambda _line: None,  # a failure is told with its last words
            on_event=lambda _rank, _event: None,
            launcher=self.launcher,
        )
        if outcome.exit_code != ExitCode.DONE:
            raise RunFailedError(run, outcome)


def plan_launches(request: Request, slots: int | None, launcher: str, environ: Mapping[str, str]) -> Launches:
    """Plans the launches of all runs on this machine.

    Args:
        request: What is verified.
        slots: Ranks that this machine may take; None for its GPUs or cores.
        launcher: Its name, or ``auto``.
        environ: The caller's environment.

    Raises:
        InputError: More ranks than slots, or no launcher can start them.
    """
    sizes = sorted({run.size for run in request.runs}, reverse=True)
    plans = {size: local_plan(size, slots, environ) for size in sizes}
    for plan in plans.values():
        choose_launcher(plan, launcher)
    return Launches(request, plans, launcher)

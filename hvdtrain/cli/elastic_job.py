"""An elastic job under ``hvdtrain train`` and ``hvdtrain run``: one start, and one end."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdtrain.cli.elastic import Bounds, on_this_machine, with_commits
from hvdtrain.cli.ends import End, settle
from hvdtrain.cli.lives import document
from hvdtrain.cli.restarts import note
from hvdtrain.cli.training import with_job
from hvdtrain.errors import ExitCode, InputError

if TYPE_CHECKING:
    from hvdtrain.cli.progress_view import LineView
    from hvdtrain.config import Job
    from hvdtrain.launch.elastic import Elastic
    from hvdtrain.launch.plan import LaunchPlan
    from hvdtrain.launch.supervise import Line
    from hvdtrain.train.rundir import RunDirectory


@dataclass(frozen=True)
class ElasticTraining:
    """A training whose ranks may go while it runs on this machine.

    Attributes:
        job: The job.
        path: Its file; None for the bundled one.
        bounds: How many ranks it has.
    """

    job: Job
    path: Path | None
    bounds: Bounds

    def planned(self, plan: LaunchPlan, run: RunDirectory) -> tuple[LaunchPlan, Elastic]:
        """The plan with the program of the ranks, and what starts it."""
        from hvdtrain.train.launching import elastic_program

        told = with_commits(with_job(plan, self.job, self.path, run), self.bounds)
        return replace(told, program=elastic_program()), on_this_machine(self.bounds, plan.python, plan.size)

    def run(self, plan: LaunchPlan, run: RunDirectory, view: LineView) -> End | None:
        """Trains; how it ended, None where it is done."""
        from hvdtrain.launch.describe import describe_plan
        from hvdtrain.launch.elastic_job import Listeners, supervise_elastic

        plan, elastic = self.planned(plan, run)
        refuse(elastic, plan)
        run.write_json("plan.json", describe_plan(plan, elastic))
        leader = [0]

        def take(rank: int, event: dict[str, Any]) -> None:
            leader[0] = rank  # whoever is rank 0 now tells the events
            view(event)

        listeners = Listeners(
            lambda line: view.say(line.text) if line.rank == leader[0] else None,
            take,
            lambda text: view({"event": "note", "text": text}),
        )
        outcome = supervise_elastic(elastic.command(plan), listeners, base_env=plan.environ)
        if outcome.exit_code == ExitCode.DONE and view.result is not None:
            return None
        return settle(outcome, run, view)


def refuse(elastic: Elastic, plan: LaunchPlan) -> None:
    """Refuses a plan that Horovod Elastic cannot start.

    Raises:
        InputError: Says why.
    """
    if reason := elastic.refusal(plan):
        raise InputError(reason, where="--elastic")


def run_program(
    elastic: Elastic, plan: LaunchPlan, *, timeout_s: float | None, has_tags: bool | None, as_json: bool
) -> int:
    """Runs any program as ranks that may go and come; returns what to end with."""
    from hvdtrain.launch.elastic_job import Listeners, supervise_elastic
    from hvdtrain.launch.supervise import failure_text, tagged

    # With --json stdout is for the one document.
    streams = {"stdout": sys.stderr if as_json else sys.stdout, "stderr": sys.stderr}

    def show(line: Line) -> None:
        stream = streams[line.stream]
        stream.write(tagged(line, 1 if has_tags is False else 2) + "\n")
        stream.flush()

    listeners = Listeners(show, lambda _rank, _event: None, note)
    outcome = supervise_elastic(elastic.command(plan), listeners, base_env=plan.environ, timeout_s=timeout_s)
    text = failure_text(outcome, plan.log_dir) if outcome.exit_code else ""
    if text:
        print(f"hvdtrain: {text}", file=sys.stderr, flush=True)
    if as_json:
        print(json.dumps(document(outcome, elastic.name, text)))
    return int(outcome.exit_code)

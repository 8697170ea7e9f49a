"""The lives of a training under ``hvdtrain train``, which starts its own ranks on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdtrain.cli.ends import End, failed, settle
from hvdtrain.cli.option_types import import_folders
from hvdtrain.cli.restarts import Restarts, look_around, note
from hvdtrain.errors import ExitCode, InputError

if TYPE_CHECKING:
    from hvdtrain.cli.progress_view import LineView
    from hvdtrain.config import Job
    from hvdtrain.launch.plan import LaunchPlan
    from hvdtrain.launch.supervise import JobOutcome
    from hvdtrain.train.rundir import RunDirectory


@dataclass(frozen=True)
class Training:
    """What stays the same from one life of a training to the next.

    Attributes:
        job: The job.
        path: Its file; None for the bundled one.
        run: Its directory.
        view: Shows its events.
        restarts: Decides whether there is another life.
        options: ``launcher``, ``slots`` and ``min_ranks`` as the user gave them.
    """

    job: Job
    path: Path | None
    run: RunDirectory
    view: LineView
    restarts: Restarts
    options: dict[str, Any]

    def run_lives(self, plan: LaunchPlan) -> End | None:
        """Runs the lives, the first by this plan; how the last one ended, None where it is done."""
        size, job = plan.size, self.job
        try:
            while True:
                outcome = self._live(with_job(plan, job, self.path, self.run, self.restarts.environment()))
                if outcome.exit_code == ExitCode.DONE and self.view.result is not None:
                    return None
                if not self.restarts.again(outcome, plan):
                    break
                self.view.say(failed(outcome, self.run.logs).text)
                if (following := self._next(plan, size)) is None:
                    break
                plan, job = following, self.job.model_copy(update={"resume": "auto"})
        except SystemExit as asked:
            told = self.restarts.preempted(asked)
            self.run.write_status("preempted", step=self.restarts.checkpoint, reason=told)
            return End(int(ExitCode.PREEMPTED), told, f"hvdtrain: {told}")
        end = settle(outcome, self.run, self.view)
        why = f"\nhvdtrain: note: no restart: {self.restarts.why}" if self.restarts.why else ""
        return replace(end, text=end.text + why)

    def _live(self, plan: LaunchPlan) -> JobOutcome:
        from hvdtrain.launch.describe import describe_plan
        from hvdtrain.launch.job import choose_launcher, launch_job

        chosen = choose_launcher(plan, self.options["launcher"])
        self.run.write_json("plan.json", describe_plan(plan, chosen))
        return launch_job(
            plan,
            # What the user's code prints on rank 0; the other ranks' output stands in their logs.
            on_line=lambda line: self.view.say(line.text) if line.rank == 0 else None,
            on_event=lambda _, event: self._take(event),
            launcher=chosen.name,
        )

    def _take(self, event: dict[str, Any]) -> None:
        self.view(event)
        if told := self.restarts.trail.take(event):
            self.view({"event": "note", "text": told})

    def _next(self, plan: LaunchPlan, size: int) -> LaunchPlan | None:
        """The plan of the next life; None where too few GPUs are left for ``size`` ranks, or fewer."""
        from hvdtrain.launch.machine import local_plan
        from hvdtrain.launch.restart import ranks_left
        from hvdtrain.topology.hosts import local_cluster

        self.restarts.wait()
        # The user's own number of slots lets ranks share GPUs.
        asked = plan if self.options["slots"] is None else replace(plan, uses_gpus=False)
        rest = look_around(asked, local_cluster(size))
        least = self.options["min_ranks"]
        num_ranks, why = ranks_left(rest.cluster.slots if rest.cluster else 0, size, least)
        if num_ranks:
            try:
                num_ranks = _shared_batch(self.job, num_ranks, least or size)
            except InputError as error:
                why = str(error)
        self.restarts.why = why
        if why:
            return None
        if num_ranks != plan.size:
            note(f"going on with {num_ranks} of {size} ranks")
        return local_plan(num_ranks, self.options["slots"], os.environ)


def with_job(
    plan: LaunchPlan, job: Job, path: Path | None, run: RunDirectory, env: Mapping[str, str] | None = None
) -> LaunchPlan:
    """The plan with the program of a job's ranks.

    Args:
        plan: Where they run.
        job: The job.
        path: Its file; None for the bundled one.
        run: Its directory.
        env: More variables for the ranks.
    """
    from hvdtrain.train.launching import rank_program

    program, own = rank_program(job, run, import_folders(path))
    return replace(plan, program=program, env={**(env or {}), **own}, log_dir=run.logs.resolve())


def _shared_batch(job: Job, most: int, least: int) -> int:
    """The largest number of ranks, at most ``most``, that can share the job's batch.

    Raises:
        InputError: There is none of at least ``least``.
    """
    from hvdtrain.train.preflight import check_batch

    while True:
        try:
            check_batch(job, most)
        except InputError:
            if most <= least:
                raise
            most -= 1
        else:
            return most

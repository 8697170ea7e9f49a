"""The lives of a job under ``hvdtrain run``: from the first plan to the end of the last one."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hvdtrain.cli.ends import End, tell
from hvdtrain.cli.launch_options import LaunchOptions, make_plan
from hvdtrain.cli.restarts import Restarts, look_around, note
from hvdtrain.errors import ExitCode, LaunchError

if TYPE_CHECKING:
    from hvdtrain.launch.plan import LaunchPlan
    from hvdtrain.launch.supervise import JobOutcome, Line
    from hvdtrain.topology.hosts import Cluster, Placement


@dataclass(frozen=True)
class Lives:
    """What stays the same from one life of a job to the next.

    Attributes:
        launch: How ranks are started.
        cluster: All hosts that the job was given.
        cores_per_rank: Cores that each rank is bound to; None binds none.
        program: What every rank runs.
        restarts: Decides whether there is another life.
        min_ranks: Ranks that a restart needs; None for as many as the first life had.
        has_tags: Whether the rank stands before each line; None where there are several.
        as_json: Whether stdout is for one document at the end.
    """

    launch: LaunchOptions
    cluster: Cluster
    cores_per_rank: int | None
    program: tuple[str, ...]
    restarts: Restarts
    min_ranks: int | None = None
    has_tags: bool | None = None
    as_json: bool = False

    def plan(self, placement: Placement, *, is_dry: bool = False) -> tuple[LaunchPlan, tuple[str, ...]]:
        """The plan of a life, and what the user should know about how it was made."""
        plan, notes = make_plan(self.launch, placement, self.program, os.environ, is_dry=is_dry)
        return replace(plan, env={**plan.env, **self.restarts.environment()}), notes

    def run(self, plan: LaunchPlan) -> int:
        """Runs the job's lives, the first by this plan; returns what to end with."""
        end_at = time.monotonic() + (self.launch.timeout_s or float("inf"))
        size = plan.size
        try:
            while True:
                outcome, told = self._live(plan, end_at)
                following = self._next(plan, size, end_at) if self.restarts.again(outcome, plan) else None
                if following is None:
                    break
                plan = following
        except BrokenPipeError:  # `| head`; the job has been ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return 128 + signal.SIGPIPE
        except SystemExit as asked:
            text = self.restarts.preempted(asked)
            return tell(End(int(ExitCode.PREEMPTED), text, f"hvdtrain: {text}"), self.as_json)
        if self.restarts.why:
            note(f"no restart: {self.restarts.why}")
        if self.as_json:
            print(json.dumps({**told, "restarts": self.restarts.used, "no_restart": self.restarts.why}))
        return int(outcome.exit_code)

    def _live(self, plan: LaunchPlan, end_at: float) -> tuple[JobOutcome, dict[str, Any]]:
        """One life: how it ended, and the document that tells it."""
        from hvdtrain.launch.job import choose_launcher, launch_job
        from hvdtrain.launch.supervise import failure_text, tagged

        # With --json stdout is for the one document.
        streams = {"stdout": sys.stderr if self.as_json else sys.stdout, "stderr": sys.stderr}
        size = plan.size if self.has_tags is None else 2 if self.has_tags else 1

        def show(line: Line) -> None:
            stream = streams[line.stream]
            stream.write(tagged(line, size) + "\n")
            stream.flush()

        def take(_rank: int, event: dict[str, Any]) -> None:
            if text := self.restarts.trail.take(event):
                note(text)

        left_s = self.launch.timeout_s
        if left_s is not None and self.restarts.used:
            left_s = round(max(0.1, end_at - time.monotonic()), 1)
        launcher = choose_launcher(plan, self.launch.launcher or "auto")
        outcome = launch_job(plan, show, take, launcher=launcher.name, timeout_s=left_s)
        text = failure_text(outcome, plan.log_dir) if outcome.exit_code else ""
        if text:
            print(f"hvdtrain: {text}", file=sys.stderr, flush=True)
        if outcome.reason and plan.uses_gpus and outcome.exit_code == ExitCode.USAGE:
            note("for a program that uses no GPU pass --no-gpus")
        return outcome, document(outcome, launcher.name, text)

    def _next(self, plan: LaunchPlan, size: int, end_at: float) -> LaunchPlan | None:
        """The plan of the next life, on the hosts that still answer; None where too few do.

        Args:
            plan: Of the life that ended.
            size: Ranks that the user asked for.
            end_at: When the job's time is over, by ``time.monotonic``.
        """
        from hvdtrain.launch.restart import ranks_left
        from hvdtrain.topology.hosts import place

        while True:
            if time.monotonic() + self.restarts.next_pause_s >= end_at:
                self.restarts.why = f"the {self.launch.timeout_s:g} s of --timeout are over"
                return None
            self.restarts.wait()
            rest = look_around(plan, self.cluster)
            offered = rest.cluster.slots if rest.cluster else 0
            num_ranks, self.restarts.why = ranks_left(offered, size, self.min_ranks)
            if rest.cluster is None or num_ranks == 0:
                return None
            if num_ranks != plan.size:
                note(f"going on with {num_ranks} of {size} ranks")
            try:
                return self.plan(place(rest.cluster, num_ranks, cores_per_rank=self.cores_per_rank))[0]
            except LaunchError as error:  # a host went away in this very moment
                if self.restarts.used >= self.restarts.most:
                    raise
                note(str(error))


def document(outcome: JobOutcome, launcher: str, text: str) -> dict[str, Any]:
    """The document that tells how a life ended, schema 1."""
    first = outcome.first_failure
    return {
        "schema": 1,
        "exit_code": int(outcome.exit_code),
        "launcher": launcher,
        "size": outcome.size,
        "done": sorted(outcome.done),
        "failed_rank": first.rank if first else None,
        "failed_host": first.host if first else None,
        "failed_code": first.code if first else None,
        "other_failures": [
            {"rank": end.rank, "host": end.host, "code": end.code, "error": end.error}
            for end in outcome.other_failures
        ],
        "error": text,
    }

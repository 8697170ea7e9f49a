"""The lives of a job: what is asked and told between one and the next."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hvdtrain.cli.ending_signals import ANNOUNCING
from hvdtrain.errors import InputError

if TYPE_CHECKING:
    from hvdtrain.launch.outcome import JobOutcome
    from hvdtrain.launch.plan import LaunchPlan
    from hvdtrain.launch.restart import Life, Rest, Trail
    from hvdtrain.topology.hosts import Cluster

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--max-restarts",
        type=click.IntRange(min=0),
        default=0,
        metavar="K",
        help="After a failure start again, a training from its last checkpoint, at most so often.",
    ),
    click.option(
        "--min-ranks",
        type=click.IntRange(min=1),
        metavar="M",
        help="Ranks that a restart needs where hosts or GPUs are gone; default: as many as before.",
    ),
)


def restart_options(function: Function) -> Function:
    """Gives a click command the options."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def check_restarts(max_restarts: int, min_ranks: int | None, size: int | None) -> None:
    """Refuses numbers that do not go together.

    Args:
        max_restarts: Restarts that the user allows.
        min_ranks: Ranks that a restart needs.
        size: Ranks that the user asked for; None where that is not known yet.

    Raises:
        InputError: They contradict each other.
    """
    if min_ranks is None:
        return
    if max_restarts == 0:
        raise InputError(
            "given without --max-restarts", where="--min-ranks", do="say how often: --max-restarts 3"
        )
    if size is not None and min_ranks > size:
        raise InputError(f"{min_ranks} of {size}", where="--min-ranks", legal=f"1 to {size}")


@dataclass
class Restarts:
    """Counts and decides; a failure that comes back at the same step ends the job.

    Attributes:
        most: Restarts that the user allows.
        trail: How far the training got; None for a fresh one.
        pause: Waits for some seconds.
        used: Restarts that there were.
        why: Why there was no further one; empty where the end speaks for itself.
    """

    most: int
    trail: Trail
    pause: Callable[[float], None] = time.sleep
    used: int = 0
    why: str = ""
    _before: Life | None = field(default=None, repr=False)

    @property
    def signals(self) -> tuple[signal.Signals, ...]:
        """Signals that would else kill a command that waits for its next life."""
        return ANNOUNCING if self.most else ()

    @property
    def next_pause_s(self) -> float:
        """Seconds before the next life."""
        from hvdtrain.launch.restart import pause_s

        return pause_s(self.used + 1)

    def again(self, outcome: JobOutcome, plan: LaunchPlan) -> bool:
        """Decides after a life of this plan; ``why`` says why not."""
        from hvdtrain.launch.restart import Life, decide, is_final

        if not self.most or is_final(outcome):  # before a checkpoint is read from one end to the other
            return False
        checkpoint, step = self.checkpoint, self.trail.step
        if step is None and self.trail.run_dir:  # a training that took no step
            step = checkpoint or 0
        life = Life(outcome, plan.placement.hosts, checkpoint, step, self.trail.slack)
        decision = decide(life, self._before, self.used, self.most)
        self._before, self.why = life, decision.why
        return decision.again

    def wait(self) -> None:
        """Tells of the next life, and pauses before it."""
        pause, self.used = self.next_pause_s, self.used + 1
        left = self.most - self.used
        note(f"starting again{self._where()} in {pause:g} s; {left} restart{'s' if left != 1 else ''} left")
        self.pause(pause)
        self.trail.begin()

    def preempted(self, asked: SystemExit) -> str:
        """What to tell of a signal that came between two lives: the run goes on later, from its checkpoint.

        Raises:
            SystemExit: There is no checkpoint, or no restart was allowed.
        """
        step = self.checkpoint if self.most else None
        if step is None or not isinstance(asked.code, int):
            raise asked
        name = signal.Signals(asked.code - 128).name
        return f"preempted by {name} before it started again; the checkpoint of step {step} stands"

    @property
    def checkpoint(self) -> int | None:
        """The step of the newest whole checkpoint; None where there is none, or this host sees none."""
        from hvdtrain.train.store import newest_whole

        if not self.trail.run_dir:
            return None
        newest, _ = newest_whole(Path(self.trail.run_dir) / "checkpoints")
        return newest.step if newest else None

    def environment(self) -> dict[str, str]:
        """What tells the ranks of the next life that there were others, and where."""
        from hvdtrain.launch.restart import RESTART, RUN_DIR

        if not self.most:
            return {}
        place = {RUN_DIR: self.trail.run_dir} if self.trail.run_dir and self.used else {}
        return {RESTART: str(self.used), **place}

    def _where(self) -> str:
        if not self.trail.run_dir:
            return ""
        step = self._before.checkpoint if self._before else None
        return f" from step {step}" if step is not None else " from the beginning (no checkpoint yet)"


def note(text: str) -> None:
    """Tells something on stderr."""
    with suppress(OSError):  # the terminal may be gone
        print(f"hvdtrain: note: {text}", file=sys.stderr, flush=True)


def look_around(plan: LaunchPlan, cluster: Cluster) -> Rest:
    """Asks the hosts of a job whether they are still there, and tells of those that are not.

    Args:
        plan: The life that ended.
        cluster: All hosts that the job was given.
    """
    from hvdtrain.launch.host_report import report
    from hvdtrain.launch.restart import rest_of
    from hvdtrain.launch.survey import ask_each

    names = [host.name for host in cluster.hosts]
    answers = {names[0]: report([])} if plan.is_local and len(names) == 1 else ask_each(plan, names)
    # Slurm shows another process of its job fewer or more GPUs than a rank will see.
    rest = rest_of(cluster, answers, uses_gpus=plan.uses_gpus and plan.slurm is None)
    for told in rest.notes:
        note(told)
    return rest

"""Whether a job that failed starts again: decisions from facts; nothing is started here.

Each run of the ranks from their start to their end is a life of the job. Another one follows a failure,
unless the failure would come back: the user's input was wrong, or two lives ended at the same step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from hvdtrain.errors import ExitCode
from hvdtrain.launch.outcome import JobOutcome
from hvdtrain.topology.hosts import Cluster, Host

RESTART = "HVDTRAIN_RESTART"  # tells the ranks how many lives came before theirs
RUN_DIR = "HVDTRAIN_RUN_DIR"  # and where their run is; train.launching has the same name
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0

# Ends that another life would not change: what was asked for, wrong input, and a gate's verdict.
_FINAL = frozenset({ExitCode.DONE, ExitCode.USAGE, ExitCode.GATE, ExitCode.PREEMPTED})
_TOLD_EVERY_S = 0.2  # how often a training tells its step


def pause_s(restart: int) -> float:
    """Seconds before the ``restart``-th restart, counted from 1: 1, 2, 4 and so on, at most 60."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(restart - 1, 10))


@dataclass
class Trail:
    """How far a training got, as the events of its rank 0 tell; other programs leave it empty.

    Attributes:
        run_dir: The run directory, as rank 0's host names it.
        step: The last step that was told of in this life.
        slack: Steps that may have passed since: quick steps are not told of one by one.
        global_batch: Samples of a step.
    """

    run_dir: str = ""
    step: int | None = None
    slack: int = 0
    global_batch: int | None = None

    def begin(self) -> None:
        """A new life begins: nothing is known of its steps."""
        self.step, self.slack = None, 0

    def take(self, event: Mapping[str, Any]) -> str:
        """Takes an event; returns what the user should be told of it, empty for nothing."""
        kind = event.get("event")
        if kind == "run":
            self.run_dir = str(event["path"])
        elif kind in ("step", "epoch"):
            self.step = int(event["step"])
            left, left_s = event.get("steps", 0) - self.step, event.get("left_s", 0.0)
            if left > 0 and left_s > 0:
                self.slack = ceil(_TOLD_EVERY_S * left / left_s)
        elif kind == "start":
            before, self.global_batch = self.global_batch, event.get("global_batch")
            if before and self.global_batch and before != self.global_batch:
                return (
                    f"the global batch is {self.global_batch} samples and was {before}: the job names "
                    "batch.per_rank, which stays"
                )
        return ""


@dataclass(frozen=True)
class Life:
    """What one life came to.

    Attributes:
        outcome: How it ended.
        layout: The hosts that it ran on, and the ranks on each.
        checkpoint: The step of the newest whole checkpoint; None where there is none, or nobody knows.
        step: The last step that was told of; None where nobody knows.
        slack: Steps that may have passed since.
    """

    outcome: JobOutcome
    layout: tuple[Host, ...] = ()
    checkpoint: int | None = None
    step: int | None = None
    slack: int = 0

    def repeats(self, before: Life | None) -> bool:
        """Whether it got to the step at which the life before it ended, on the same hosts, and no further."""
        if before is None or self.step is None or before.step is None:
            return False
        is_same_start = self.checkpoint == before.checkpoint and self.layout == before.layout
        return is_same_start and abs(self.step - before.step) <= max(self.slack, before.slack)


@dataclass(frozen=True)
class Decision:
    """Whether there is another life, and if not what to tell of it; empty where the end speaks for itself."""

    again: bool
    why: str = ""


def is_final(outcome: JobOutcome) -> bool:
    """Whether another life would not change this end, or nobody wants one."""
    is_out_of_time = outcome.exit_code == ExitCode.STALLED and bool(outcome.reason)  # of --timeout
    return outcome.exit_code in _FINAL or bool(outcome.interrupted) or is_out_of_time


def decide(life: Life, before: Life | None, used: int, most: int) -> Decision:
    """Decides after a life.

    Args:
        life: The life that ended.
        before: The one before it.
        used: Restarts that there were.
        most: Restarts that the user allows.
    """
    if most == 0 or is_final(life.outcome):
        return Decision(False)
    if life.repeats(before):
        at = f"at step {life.step}" if life.step else "before the first step"
        return Decision(False, f"it failed {at} twice, with no checkpoint made in between")
    if used >= most:
        return Decision(False, f"it failed after {_count(used, 'restart')}, all that --max-restarts allows")
    return Decision(True)


@dataclass(frozen=True)
class Rest:
    """What is left of a job's hosts.

    Attributes:
        cluster: The hosts that answer, with the slots that they have; None where no host does.
        notes: What became of the others, a sentence each.
    """

    cluster: Cluster | None
    notes: tuple[str, ...] = ()


def offered(cluster: Cluster, ranks_per_node: int | None) -> Cluster:
    """The hosts with the slots that the user lets a job take of each."""
    if ranks_per_node is None:
        return cluster
    hosts = [_narrowed(host, ranks_per_node) for host in cluster.hosts]
    return replace(cluster, hosts=tuple(hosts))


def _narrowed(host: Host, slots: int) -> Host:
    devices = None if host.devices is None else host.devices[:slots]
    return replace(host, slots=min(slots, host.slots), devices=devices)


def rest_of(cluster: Cluster, answers: Mapping[str, Mapping[str, Any] | str], *, uses_gpus: bool) -> Rest:
    """The hosts that still answer, a slot for each GPU that they still show.

    Args:
        cluster: The hosts that the job was given.
        answers: By host its report (``host_report``), or why it gave none.
        uses_gpus: Whether the slots are GPUs, and a report tells how many of them there are.
    """
    hosts, notes = [], []
    for host in cluster.hosts:
        answer = answers[host.name]
        if isinstance(answer, str):
            notes.append(f"host {host.name} does not answer: {answer}")
            continue
        shown = int(answer["gpus"]) if uses_gpus and host.devices is None else host.slots
        if shown < host.slots:
            notes.append(f"host {host.name} shows {_count(shown, 'GPU')} of {host.slots}")
        if shown > 0:
            hosts.append(_narrowed(host, shown))
    return Rest(replace(cluster, hosts=tuple(hosts), notices=()) if hosts else None, tuple(notes))


def ranks_left(offered: int, wanted: int, least: int | None) -> tuple[int, str]:
    """How many ranks the next life has, and why not any; 0 then.

    Args:
        offered: Slots that are left.
        wanted: Ranks that the user asked for.
        least: Ranks that the user wants at least; None for all of them.
    """
    if offered >= (wanted if least is None else least):
        return min(offered, wanted), ""
    left = f"{_count(offered, 'rank')} of {wanted} can be started"
    if least is None:
        return 0, f"{left}; --min-ranks allows fewer"
    return 0, f"{left}, fewer than --min-ranks {least}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

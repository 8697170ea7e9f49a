"""What ``hvdtrain submit --requeue`` adds, so that a job that ran again goes on where it was."""

from __future__ import annotations

import signal as signals
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hvdtrain.errors import InputError

if TYPE_CHECKING:
    from hvdtrain.config import Job

Function = TypeVar("Function", bound=Callable[..., Any])

_SAVING = ("SIGTERM", "SIGUSR1", "SIGUSR2")  # what the batch script hands on, and a job file may name
MOST_REQUEUES = 100  # unless the user says otherwise: two weeks of jobs of four hours

_OPTIONS = (
    click.option(
        "--requeue", is_flag=True, help="Run again after a preemption or at the time limit, and go on."
    ),
    click.option(
        "--max-requeues",
        type=click.IntRange(1, 1_000_000),
        metavar="N",
        help=f"How often at most; default: {MOST_REQUEUES}.",
    ),
)


def requeue_options(function: Function) -> Function:
    """Gives a click command the options."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def max_requeues(options: Mapping[str, Any]) -> int:
    """How often the job may run again; 0 for never.

    Raises:
        InputError: A number without ``--requeue``.
    """
    if options["requeue"]:
        return int(options["max_requeues"] or MOST_REQUEUES)
    if options["max_requeues"] is not None:
        raise InputError("given without --requeue", where="--max-requeues", do="add --requeue")
    return 0


@dataclass(frozen=True)
class Requeued:
    """What a training needs to be run again.

    Attributes:
        words: For ``hvdtrain train``.
        signal: Before the end, in sbatch's words.
        run_dir: Where its files go, before the job's id is added; empty where the user named a directory.
    """

    words: tuple[str, ...] = ()
    signal: str = ""
    run_dir: str = ""


def requeued(job: Job, options: Mapping[str, Any]) -> Requeued:
    """What to add for a job file's training.

    The signal comes when the training would end by the clock too. The training has to know it: SIGUSR1 and
    SIGUSR2 kill a process that does not.

    Args:
        job: The job.
        options: ``signal``, ``run_dir`` and ``array`` as the user gave them.

    Raises:
        InputError: All elements of an array would go on with one and the same run, or the signal is none that
            a training saves at.
    """
    if options["array"] and options["run_dir"]:
        raise InputError(
            f"{options['run_dir']} would hold the run of every element of --array {options['array']}",
            where="--run-dir",
            do="omit it: with --requeue each element has a directory of its own",
        )
    known = job.preemption.signals
    asked = _name(options["signal"]) if options["signal"] else ""
    if options["signal"] and asked not in _SAVING:
        raise InputError(
            f"{options['signal']!r} with --requeue, which saves before it goes on",
            where="--signal",
            legal="TERM, USR1 or USR2, and up to 65535 seconds: USR1@120",
        )
    name = asked or next((one for one in known if one != "SIGTERM"), "SIGUSR1")
    words = ["--resume"]
    if name not in known:
        words += ["--set", f"preemption.signals=[{','.join((*known, name))}]"]
    at_s = min(65535, max(1, ceil(job.preemption.margin_s)))  # sbatch's limit
    return Requeued(
        tuple(words),
        options["signal"] or f"{name.removeprefix('SIG')}@{at_s}",
        "" if options["run_dir"] else str(job.output.dir / job.name),
    )


def _name(text: str) -> str:
    """The signal in sbatch's words, ``B:USR1@60`` or ``10``, by its name; empty for one that is none."""
    word = text.rpartition(":")[2].partition("@")[0].removeprefix("SIG")
    try:
        return signals.Signals(int(word)).name if word.isdecimal() else signals.Signals[f"SIG{word}"].name
    except (ValueError, KeyError):
        return ""

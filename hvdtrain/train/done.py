"""Whether a run that is to go on has reached its end already. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvdtrain.config import Job
from hvdtrain.errors import InputError
from hvdtrain.train.store import Stored, newest_whole, stored_in

# What is told of a result; one that lacks it is another version's.
_NUMBERS = ("accuracy", "loss", "samples_per_s", "steps", "epochs", "size")


def result_of(path: Path, status: Mapping[str, Any], earlier: Job, job: Job) -> dict[str, Any] | None:
    """The result of a run with which nothing is left to do; None where it goes on.

    A damaged last checkpoint, or other metrics, are reasons to go on: the end is made once more.

    Args:
        path: The run directory.
        status: What its ``status.json`` tells.
        earlier: The job that made it.
        job: The job that is to go on with it.

    Raises:
        InputError: It ended, the job asks for more, and there is no checkpoint to go on from.
    """
    result = status.get("result")
    if status.get("state") != "done" or not isinstance(result, dict) or not _is_whole(result):
        return None
    if earlier.metrics != job.metrics:
        return None
    if not stored_in(path / "checkpoints"):
        if _asks_for_more(result, earlier, job):
            raise InputError(
                f"the run is done after {result['steps']} steps, and has no checkpoint to go on from",
                where=str(path),
                do="pass --overwrite in place of --resume to lose that run",
            )
    elif not _reaches(newest_whole(path / "checkpoints")[0], result["steps"], job):
        return None
    return {**result, "run_dir": str(path)}


def told(result: Mapping[str, Any]) -> str:
    """What the user hears in place of a training."""
    epochs, steps = (_count(result[noun], noun) for noun in ("epochs", "steps"))
    where = result["run_dir"]
    return f"{where} is done after {epochs}, {steps}: nothing is left to do; with more of them it goes on"


def _reaches(newest: Stored | None, steps: int, job: Job) -> bool:
    """Whether the newest whole checkpoint is that of the run's end, and the job asks for no more."""
    if newest is None or newest.step != steps:
        return False
    if job.steps is not None:
        return newest.step >= job.steps
    epoch = newest.facts.get("epoch")
    return isinstance(epoch, int) and epoch >= (job.epochs or 0)


def _asks_for_more(result: Mapping[str, Any], earlier: Job, job: Job) -> bool:
    """Whether a job goes beyond what a run did that reached the end of an earlier one."""
    if (earlier.epochs, earlier.steps) == (job.epochs, job.steps):
        return False
    if job.steps is not None:
        return job.steps > int(result["steps"])
    epochs, done = job.epochs or 0, result["epochs"] or 0
    # A number of steps may have ended it inside of its last epoch.
    return epochs >= done if earlier.steps is not None else epochs > done


def _is_whole(result: Mapping[str, Any]) -> bool:
    numbers = [result.get(name, "") for name in _NUMBERS]
    is_told = all(value is None or isinstance(value, int | float) for value in numbers)
    return is_told and isinstance(result["steps"], int) and isinstance(result.get("backend"), str)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun.removesuffix('s') if number == 1 else noun}"

"""One rank of a run, from knowing who it is to the result.

``python -m hvdtrain.train.rank`` is what our launcher starts. Job and run directory come in the
variables of ``launching``, and rank 0's events leave on stdout as lines that begin with
``EVENT_MARK``. Ranks that a foreign launcher started come here by way of ``joining``.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch

from hvdtrain.backends.base import Backend
from hvdtrain.backends.choose import choose_backend
from hvdtrain.backends.start import start_backend
from hvdtrain.config import Job
from hvdtrain.errors import ExitCode, HvdtrainError, InputError
from hvdtrain.topology.environ import World, find_world
from hvdtrain.train.build import build_trainer
from hvdtrain.train.checkpoint import save_checkpoint
from hvdtrain.train.launching import IMPORT_PATH, JOB, RUN_DIR
from hvdtrain.train.observe import Emit, finite
from hvdtrain.train.rundir import RunDirectory
from hvdtrain.train.seats import Seating, take_seats
from hvdtrain.train.trainer import Outcome
from hvdtrain.tuning import conflicts, horovod_environment, mpi_defaults

EVENT_MARK = "\x1ehvdtrain "

OpenRun = Callable[[Backend, Seating], RunDirectory | None]


def run_rank(job: Job, world: World, open_run: OpenRun, emit: Emit) -> dict[str, Any]:
    """Trains as one rank; returns the result document.

    Args:
        job: The job, the same on all ranks.
        world: Which rank this is.
        open_run: Gives rank 0's run directory and None elsewhere; it may use collectives.
        emit: Shows an event to the user; called on rank 0 only.

    Raises:
        HvdtrainError: With the one line that the user gets.
    """
    name, why = choose_backend(job.backend, world.size)
    notes = [why, world.notice, *prepare_environment(job, world, name)]
    backend = start_backend(name, world)
    run = open_run(backend, take_seats(backend))
    if run:
        for note in filter(None, notes):
            emit({"event": "note", "text": note})
    trainer = build_trainer(job, backend, run, emit)
    try:
        outcome = trainer.fit()
        result = _result(outcome, backend, run)
        if run and result["loss"] is None:
            emit(
                {
                    "event": "note",
                    "text": "the training diverged: its loss is no finite number (null in JSON)",
                }
            )
        if run:
            save_checkpoint(run.checkpoints, outcome.steps, trainer.state())
            trainer.finish(result)
    finally:
        trainer.close()
    backend.close()
    return result


def prepare_environment(job: Job, world: World, backend: str) -> list[str]:
    """Sets what Horovod and MPI read when they start; returns what the user should know."""
    settings = horovod_environment(job.tuning)
    if backend != "horovod":
        told = sorted(job.tuning.model_fields_set - {"compression"})
        return [f"tuning.{', tuning.'.join(told)}: Horovod's, not used by backend {backend}"] if told else []
    notes = conflicts(settings, os.environ)
    cores = len(os.sched_getaffinity(0))
    on_cpu = not torch.cuda.is_available()
    settings.update(mpi_defaults(world.local_size, cores, on_cpu=on_cpu, env=os.environ))
    os.environ.update(settings)
    return notes


def _result(outcome: Outcome, backend: Backend, run: RunDirectory | None) -> dict[str, Any]:
    """The result document; a value that is no number, as of a run that diverged, is null."""
    return finite(
        {
            "schema": 1,
            "run_dir": str(run.path) if run else None,
            "backend": backend.name,
            "size": backend.size,
            "epochs": outcome.epochs,
            "steps": outcome.steps,
            "loss": outcome.train.loss,
            "accuracy": outcome.validation.accuracy,
            "validation_loss": outcome.validation.loss,
            "samples_per_s": round(outcome.samples_per_s, 1),
        }
    )


def end_rank(error: BaseException, world: World | None = None) -> NoReturn:
    """Ends this process at once, its reason on stderr.

    A rank that ends by an exception in the usual way waits in MPI_Finalize for ranks that wait
    for it in a reduction. Ending without Finalize makes the launcher end the others.
    """
    if world and world.rank > 0 and isinstance(error, InputError):
        # Most such errors are met by all ranks: rank 0 tells it, and its end ends the others.
        time.sleep(1.0)
    if isinstance(error, HvdtrainError):
        code = int(error.exit_code)
        # The user's own code failed inside ours: its traceback says where.
        detail = str(getattr(error, "detail", "")).strip()
        sys.stderr.write(f"{detail}\n" if detail else "")
        sys.stderr.write(f"hvdtrain: error: {error}\n")
    else:
        code = int(ExitCode.FAILED)
        traceback.print_exception(error, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def relay(event: Mapping[str, Any]) -> None:
    """Sends an event to the launcher."""
    sys.stdout.write(f"{EVENT_MARK}{json.dumps(event)}\n")
    sys.stdout.flush()


def main(env: Mapping[str, str]) -> int:
    """The program of a rank that our launcher started."""
    try:
        world = find_world(env)
        # Where factories of the user's are looked for. Last, so that a queue.py or a statistics.py
        # in the working folder does not take the place of Python's own.
        sys.path += [folder for folder in env.get(IMPORT_PATH, "").split(os.pathsep) if folder]
        job = Job.model_validate_json(env[JOB])
        run = RunDirectory(Path(env[RUN_DIR])) if world.rank == 0 else None
        run_rank(job, world, lambda _backend, _seating: run, relay)
    except BaseException as error:
        end_rank(error)
    return int(ExitCode.DONE)


if __name__ == "__main__":
    sys.exit(main(os.environ))

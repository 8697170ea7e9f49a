"""One rank of a run whose steps are recorded: the program that ``hvdtrain verify`` launches.

As ``rank``, but it stops after a number of steps whatever the job's length, which its learning rates keep,
evaluates nothing and makes no run directory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hvdtrain.backends.choose import choose_backend
from hvdtrain.backends.start import start_backend
from hvdtrain.config import Job
from hvdtrain.errors import ExitCode
from hvdtrain.topology.environ import World, find_world
from hvdtrain.train.build import build_parts
from hvdtrain.train.ending import end_rank
from hvdtrain.train.environment import prepare_environment
from hvdtrain.train.launching import IMPORT_PATH, JOB
from hvdtrain.train.observe import Length
from hvdtrain.train.recorder import Recorder
from hvdtrain.train.seats import take_seats
from hvdtrain.train.trainer import Trainer

RECORD_DIR = "HVDTRAIN_RECORD_DIR"
RECORD_STEPS = "HVDTRAIN_RECORD_STEPS"


def record_rank(job: Job, world: World, folder: Path, num_steps: int) -> None:
    """Trains as one rank and records.

    Args:
        job: The job, the same on all ranks.
        world: Which rank this is.
        folder: Where rank 0 writes.
        num_steps: The last step that is taken, if the job does not end before.
    """
    name, _ = choose_backend(job.backend, world.size)
    prepare_environment(job.tuning, world, name)
    backend = start_backend(name, world)
    take_seats(backend)
    parts = build_parts(job, backend, None, _say_nothing)
    recorder = Recorder(backend, parts.stepper, parts.train.partition, folder)
    length = Length(parts.length.epochs, min(num_steps, parts.length.steps), parts.length.steps_per_epoch)
    trainer = Trainer(replace(parts, length=length, recorder=recorder))
    try:
        parts.stepper.replica.model.train()
        for epoch in range(-(-length.steps // length.steps_per_epoch)):
            trainer.run_steps(parts.train.batches(epoch), epoch)
        recorder.finish({"lr": job.optimizer.lr}, job.seed)
    finally:
        trainer.close()
    backend.close()


def _say_nothing(_event: dict[str, Any]) -> None:
    """A record has no audience."""


def main(env: Mapping[str, str]) -> int:
    """The program of a rank."""
    try:
        world = find_world(env)
        sys.path += [folder for folder in env.get(IMPORT_PATH, "").split(os.pathsep) if folder]
        job = Job.model_validate_json(env[JOB])
        record_rank(job, world, Path(env[RECORD_DIR]), int(env[RECORD_STEPS]))
    except BaseException as error:
        end_rank(error)
    return int(ExitCode.DONE)


if __name__ == "__main__":
    sys.exit(main(os.environ))

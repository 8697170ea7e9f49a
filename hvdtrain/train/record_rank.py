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

import torch
from torch import nn

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
RECORD_NUDGE = "HVDTRAIN_RECORD_NUDGE"


def record_rank(job: Job, world: World, folder: Path, num_steps: int, nudge: float = 0.0) -> None:
    """Trains as one rank and records.

    Args:
        job: The job, the same on all ranks.
        world: Which rank this is.
        folder: Where rank 0 writes.
        num_steps: The last step that is taken, if the job does not end before.
        nudge: Relative change of every element of the parameters before the first step, up or down.
    """
    name, _ = choose_backend(job.backend, world.size)
    prepare_environment(job.tuning, world, name)
    backend = start_backend(name, world)
    take_seats(backend)
    # TF32 rounds to 2^-11, and other shapes get other algorithms: fp32 would not be comparable on GPUs.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    parts = build_parts(job, backend, None, _say_nothing)
    if nudge:
        _nudge(parts.stepper.replica.module, nudge, job.seed)
    recorder = Recorder(backend, parts.stepper, parts.train.partition, folder)
    length = Length(parts.length.epochs, min(num_steps, parts.length.steps), parts.length.steps_per_epoch)
    trainer = Trainer(replace(parts, length=length, recorder=recorder))
    try:
        parts.stepper.replica.model.train()
        for epoch in range(-(-length.steps // length.steps_per_epoch)):
            trainer.run_steps(parts.train.batches(epoch), epoch)
        recorder.finish({"precision": job.precision}, job.seed)
    finally:
        trainer.close()
    backend.close()


@torch.no_grad()
def _nudge(module: nn.Module, size: float, seed: int) -> None:
    """Moves each element by rounding's size; all ranks draw the same signs."""
    draw = torch.Generator().manual_seed(seed)
    for value in module.parameters():
        signs = torch.randint(0, 2, value.shape, generator=draw).to(value) * 2 - 1
        value.mul_(1 + 2 * size * signs)  # twice: one unit alone would be rounded away half of the time


def _say_nothing(_event: dict[str, Any]) -> None:
    """A record has no audience."""


def main(env: Mapping[str, str]) -> int:
    """The program of a rank."""
    try:
        world = find_world(env)
        sys.path += [folder for folder in env.get(IMPORT_PATH, "").split(os.pathsep) if folder]
        job = Job.model_validate_json(env[JOB])
        record_rank(job, world, Path(env[RECORD_DIR]), int(env[RECORD_STEPS]), float(env[RECORD_NUDGE]))
    except BaseException as error:
        end_rank(error)
    return int(ExitCode.DONE)


if __name__ == "__main__":
    sys.exit(main(os.environ))

"""What Horovod and MPI read from the environment when they start."""

from __future__ import annotations

import os

import torch

from hvdtrain.config import TuningConfig
from hvdtrain.topology.environ import World
from hvdtrain.tuning import conflicts, horovod_environment, mpi_defaults


def prepare_environment(tuning: TuningConfig, world: World, backend: str) -> list[str]:
    """Sets what Horovod and MPI read when they start; returns what the user should know."""
    settings = horovod_environment(tuning)
    if backend != "horovod":
        told = sorted(tuning.model_fields_set - {"compression"})
        return [f"tuning.{', tuning.'.join(told)}: Horovod's, not used by backend {backend}"] if told else []
    notes = conflicts(settings, os.environ)
    cores = len(os.sched_getaffinity(0))
    on_cpu = not torch.cuda.is_available()
    settings.update(mpi_defaults(world.local_size, cores, on_cpu=on_cpu, env=os.environ))
    os.environ.update(settings)
    return notes

"""``hvdtrain whoami``: which rank this process is, and whether it can be one."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping

import click

from hvdtrain.errors import InputError
from hvdtrain.topology.environ import World, find_world

# Launchers under which an MPI that does not fit starts every process as a world of its own.
_MAY_BE_SINGLETONS = ("slurm", "pmi", "pmix")


@click.command()
@click.option("--mpi/--no-mpi", "asks_mpi", default=True, help="Whether to ask MPI, too, under srun.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(asks_mpi: bool, as_json: bool) -> None:
    """Tell which rank this process is, from what the innermost launcher says.

    A process without a launcher is rank 0 of 1. What is no rank, contradicts itself or has no
    GPU while others have one is refused.
    """
    from hvdtrain.launch.gpus import visible_gpus

    world = find_world(os.environ)
    if world.notice:
        raise InputError(world.notice)
    gpus = visible_gpus(os.environ)
    device = _device_index(world, len(gpus))
    if asks_mpi and world.size > 1 and world.launcher in _MAY_BE_SINGLETONS:
        _refuse_singletons(world)
    told = {
        "schema": 1,
        "rank": world.rank,
        "size": world.size,
        "local_rank": world.local_rank,
        "local_size": world.local_size,
        "node_rank": world.cross_rank,
        "num_nodes": world.cross_size,
        "launcher": world.launcher,
        "device": device,
        "gpu": gpus[device].key if device is not None else None,
        "host": socket.gethostname(),
    }
    print(json.dumps(told) if as_json else _text(told))


def _device_index(world: World, num_visible: int) -> int | None:
    """The rank's device; None on a machine without GPUs."""
    from hvdtrain.topology.devices import device_index

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return device_index(world, visible, num_visible) if num_visible else None


def _refuse_singletons(world: World) -> None:
    from hvdtrain.launch.probe import mpi_size, slurm_mpi_types

    size = mpi_size(os.environ)
    if size in (None, world.size):
        return
    if "SLURM_JOB_ID" not in os.environ:
        raise InputError(
            f"{world.size} ranks were started but the MPI of this Python sees {size}",
            do="take launcher and MPI from one installation (of this Python: mpi4py)",
        )
    types = ", ".join(slurm_mpi_types(os.environ)) or "pmix, pmi2, none"
    raise InputError(
        f"Slurm started {world.size} tasks but MPI sees {size}",
        legal=f"srun --mpi= of {types}",
        do="start with the type that this MPI was built for: pmix for Open MPI, pmi2 for MPICH",
    )


def _text(told: Mapping[str, object]) -> str:
    parts = [
        f"rank {told['rank']} of {told['size']}",
        f"local rank {told['local_rank']} of {told['local_size']}",
        "" if told["node_rank"] is None else f"node {told['node_rank']} of {told['num_nodes']}",
        "no GPU" if told["device"] is None else f"device {told['device']} ({told['gpu']})",
        f"on host {told['host']}",
        f"started by {told['launcher']}",
    ]
    return ", ".join(filter(None, parts))

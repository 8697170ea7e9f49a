"""What a rank agent does before its program starts: which GPU the rank has, and which cores."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hvdtrain.errors import InputError
from hvdtrain.launch.gpus import Gpu, visible_gpus
from hvdtrain.topology.devices import device_index
from hvdtrain.topology.environ import World

SLOTS = "slots"  # before the GPUs of slots that have names


@dataclass(frozen=True)
class RankSeat:
    """A rank's place on its host.

    Attributes:
        gpu: Its GPU; None on CPUs.
        env: What its program is to find in the environment besides.
    """

    gpu: Gpu | None = None
    env: Mapping[str, str] = field(default_factory=dict)


def take_seat(
    world: World, gpus: str, bind: str, environ: Mapping[str, str], seen: Sequence[Gpu] | None = None
) -> RankSeat:
    """Finds the rank's GPU and binds this process, and so the program, to its cores.

    Args:
        world: The rank.
        gpus: Empty on CPUs; ``all``: the GPU of the local rank; the GPU of each rank, ``2,0,1``; or of each
            slot of this machine that ``elastic`` gave a name of its own, ``slots:2,0,1``.
        bind: ``none``, ``core``, ``core:CORES``, ``numa`` or ``gpu``.
        environ: The environment.
        seen: The GPUs that this process sees; None looks at this machine's.

    Raises:
        InputError: The rank has no GPU, or its host too few cores.
    """
    seat = RankSeat()
    if gpus:
        seat = _find_gpu(world, gpus, environ, visible_gpus(environ) if seen is None else seen)
    if bind != "none":
        _bind(world, bind, seat.gpu)
    return seat


def _find_gpu(world: World, gpus: str, environ: Mapping[str, str], seen: Sequence[Gpu]) -> RankSeat:
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if gpus == "all":
        return RankSeat(seen[device_index(world, visible, len(seen))])
    kind, _, listed = gpus.rpartition(":")
    index = int(listed.split(",")[_slot(environ) if kind == SLOTS else world.rank])
    if index >= len(seen):
        raise InputError(
            f"rank {world.rank} is placed on GPU {index}, but its host shows {len(seen)} GPU(s)",
            do="name other GPUs with --include or --exclude",
        )
    word = visible.split(",")[index].strip() if visible is not None else str(index)
    # The listing is by PCI address; by default CUDA counts the fastest GPU first.
    return RankSeat(seen[index], {"CUDA_VISIBLE_DEVICES": word, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})


def _slot(environ: Mapping[str, str]) -> int:
    """The slot by its name (``elastic.local_slots``): a rank keeps it when it gets another number."""
    return environ.get("HOROVOD_HOSTNAME", "").rpartition(".")[2].count("0")


def _bind(world: World, bind: str, gpu: Gpu | None) -> None:
    from hvdtrain.launch.binding import choose_cores, cores_near, numa_nodes

    mode, _, per_rank = bind.partition(":")
    available = sorted(os.sched_getaffinity(0))
    if mode == "gpu":
        domains = [cores_near(gpu.bus)] if gpu else []
    else:
        domains = numa_nodes() if mode == "numa" else []
    num = int(per_rank) if per_rank else None
    os.sched_setaffinity(0, choose_cores(mode, world.local_rank, world.local_size, available, domains, num))

"""Which GPU is mine: a rank's device index, and the check that no two ranks hold one GPU.

Source: CUDA C++ Programming Guide, "CUDA Environment Variables" (CUDA_VISIBLE_DEVICES).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvdtrain.errors import InputError

if TYPE_CHECKING:
    from hvdtrain.topology.environ import World

# What CUDA_VISIBLE_DEVICES holds where every device is hidden; Slurm and the container toolkit write words.
_NOTHING = frozenset({"", "-1", "nodevfiles", "none", "void"})

# Under these, the variable may differ from task to task, so a rank can be beyond the devices that it sees.
_BINDS_PER_TASK = frozenset({"slurm", "pmix", "pmi"})


@dataclass(frozen=True)
class Seat:
    """Where one rank sits.

    Attributes:
        rank: The rank.
        host: Its host's name.
        device: The GPU's UUID; empty on a CPU.
    """

    rank: int
    host: str
    device: str = ""


def device_index(world: World, visible: str | None, num_visible: int) -> int:
    """The index of the device that this rank uses, among those that its process sees.

    One visible device is device 0 in every task, whatever its number on the node (Slurm's
    ``--gpus-per-task=1``, grid engines). Else it is the local rank; under Slurm's own launch, which
    hands out devices per task, the local rank modulo the number of visible devices.

    Args:
        world: This process's place.
        visible: CUDA_VISIBLE_DEVICES: indices, UUIDs, MIG names, ``NoDevFiles`` or nothing; None if unset.
        num_visible: How many devices the CUDA runtime counts.

    Raises:
        InputError: This rank has no device: all are hidden, or others hold them.
    """
    if num_visible < 0:
        raise ValueError(f"num_visible is a count, not {num_visible}")
    setting = "CUDA_VISIBLE_DEVICES is not set" if visible is None else f"CUDA_VISIBLE_DEVICES={visible!r}"
    if num_visible == 0 or (visible is not None and visible.strip().lower() in _NOTHING):
        raise InputError(
            f"rank {world.rank} sees no GPU ({setting})",
            do="ask the scheduler for GPUs, or train on CPUs",
        )
    restricted = visible is not None
    if restricted and num_visible == 1:
        return 0
    if world.local_rank < num_visible:
        return world.local_rank
    if restricted and world.launcher in _BINDS_PER_TASK:
        return world.local_rank % num_visible
    raise InputError(
        f"local rank {world.local_rank} of {world.local_size} has no GPU: {num_visible} visible ({setting})",
        do=f"start at most {num_visible} ranks on this host",
    )


def check_seats(seats: Sequence[Seat]) -> None:
    """Refuses two ranks on one GPU, which NCCL would answer with "Duplicate GPU" or a hang.

    Every rank calls it with the same, gathered list, so all of them end.

    Raises:
        InputError: Two ranks share a device, or only some have one; names them and the usual causes.
    """
    without = [seat for seat in seats if not seat.device]
    if without and len(without) < len(seats):
        hosts = ", ".join(dict.fromkeys(seat.host for seat in without))
        raise InputError(
            f"{len(without)} of {len(seats)} ranks see no GPU, the others have one: host {hosts}",
            do="look at its driver (nvidia-smi), or leave it out",
        )
    taken: dict[str, Seat] = {}
    for seat in seats:
        if not seat.device:
            continue
        # By UUID alone, which is unique in the world: one machine may go by two names.
        other = taken.setdefault(seat.device, seat)
        if other is not seat:
            hosts = " and ".join(dict.fromkeys((other.host, seat.host)))
            raise InputError(
                f"ranks {other.rank} and {seat.rank} share GPU {seat.device} on host {hosts}",
                do="start one rank per GPU; if each of them takes itself for local rank 0 of 1, two MPI "
                "installations are mixed, or one host is listed under two names",
            )

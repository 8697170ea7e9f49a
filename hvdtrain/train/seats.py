"""Where the ranks sit: host, GPU and cores of each, agreed by all of them at the start."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

import torch

from hvdtrain.backends.base import Backend
from hvdtrain.topology.devices import Seat, check_seats


@dataclass(frozen=True)
class Seating:
    """Host, GPU and cores of every rank, in their order.

    Attributes:
        seats: Host and GPU.
        cores: The cores that each rank may use.
    """

    seats: list[Seat]
    cores: list[frozenset[int]]

    def threads(self, rank: int) -> int:
        """Threads for a rank: its cores over the ranks of its host that may use one of them too.

        A launcher that binds gives each rank cores of its own; without one, all ranks of a host
        have the same cores and must share them.
        """
        mine, host = self.cores[rank], self.seats[rank].host
        rivals = sum(
            seat.host == host and not mine.isdisjoint(cores)
            for seat, cores in zip(self.seats, self.cores, strict=True)
        )
        return max(1, len(mine) // max(1, rivals))


def take_seats(backend: Backend) -> Seating:
    """Tells all ranks where each of them sits, and divides the cores of a host; collective.

    Raises:
        InputError: Two ranks hold one GPU, or only some of the ranks have one.
    """
    device = ""
    if backend.device.type == "cuda":
        # PyTorch tells a GPU's UUID since 2.5.
        properties = torch.cuda.get_device_properties(backend.device)
        device = str(getattr(properties, "uuid", "")) or f"{socket.gethostname()}/{backend.device.index}"
    mine = Seat(backend.rank, socket.gethostname(), device), frozenset(os.sched_getaffinity(0))
    told = backend.gather(mine)
    seating = Seating([seat for seat, _ in told], [cores for _, cores in told])
    check_seats(seating.seats)
    if "OMP_NUM_THREADS" not in os.environ:
        # PyTorch would take every core for each rank, and the ranks of a host would fight for them.
        torch.set_num_threads(seating.threads(backend.rank))
    return seating

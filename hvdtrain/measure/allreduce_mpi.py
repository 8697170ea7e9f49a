"""MPI's own allreduce, for comparison, and MPI as the ranks' channel. The door to mpi4py."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from hvdtrain.errors import InputError
from hvdtrain.topology.environ import World, check_engine_size

_PAUSE_S = 1e-3


class MpiChannel:
    """The ranks of an MPI launch, with a communicator of their own.

    Args:
        world: Which rank this is.

    Raises:
        InputError: MPI cannot be loaded, or sees another number of ranks.
    """

    def __init__(self, world: World) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise InputError(f"MPI cannot be loaded: {error}", do="install mpi4py for this MPI") from None
        check_engine_size(world, MPI.COMM_WORLD.size)
        self._mpi = MPI
        self.comm = MPI.COMM_WORLD.Dup()

    @property
    def library(self) -> str:
        """Name and version of the MPI that runs, such as ``Open MPI v5.0.11``."""
        return str(self._mpi.Get_library_version()).split(",")[0].strip("\0 \n")

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order; collective."""
        arrived = self.comm.Ibarrier()
        while not arrived.Test():
            time.sleep(_PAUSE_S)  # one that spins would take cores from those that measure meanwhile
        return list(self.comm.allgather(value))

    def close(self) -> None:
        """Ends it. MPI itself ends with the process."""
        self.comm.Barrier()
        self.comm.Free()

    def part(self, ranks: Sequence[int]) -> Any:
        """A communicator of some ranks, all of them if none are named; None on the others."""
        if not ranks:
            return self.comm.Dup()
        if self.comm.rank not in ranks:
            return None
        return self.comm.Create_group(self.comm.group.Incl(list(ranks)))

    @contextmanager
    def group(self, ranks: Sequence[int]) -> Iterator[Callable[[torch.Tensor, str], None] | None]:
        """MPI_Allreduce of float32 tensors in the host's memory over ``part``; None on the other ranks."""
        comm = self.part(ranks)
        if comm is None:
            yield None
            return

        def add_up(values: torch.Tensor, _name: str) -> None:
            comm.Allreduce(self._mpi.IN_PLACE, [values.numpy(), self._mpi.FLOAT], op=self._mpi.SUM)

        yield add_up
        comm.Free()

"""The ranks that measure together: how they agree, and each library's allreduce over them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist

from hvdtrain.backends.base import choose_device
from hvdtrain.backends.choose import build_fits_torch, horovod_is_built
from hvdtrain.backends.ddp import DdpBackend
from hvdtrain.measure.allreduce_mpi import MpiChannel
from hvdtrain.topology.environ import World

# Sums a tensor in place over the ranks of a group; the name is the same on all of them.
Sum = Callable[[torch.Tensor, str], None]

_WITHOUT_MPI = frozenset(
    {"torchrun", "local", "horovodrun"}
)  # the last one's own mpirun calls itself openmpi


class Channel(Protocol):
    """How the ranks agree beside what they measure; quiet while nobody calls it."""

    def gather(self, value: Any) -> list[Any]:
        """The picklable values of all ranks, in their order, on all ranks; collective."""

    def close(self) -> None:
        """Ends it; collective."""


class Crew:
    """All ranks of a launch.

    Attributes:
        world: Which rank this is.
        device: Where this rank's buffers lie.
        hosts: The host of every rank, by its own name.
        channel: How they agree.
    """

    def __init__(self, world: World, device: torch.device, channel: Channel) -> None:
        self.world, self.device, self.channel = world, device, channel
        self.hosts: list[str] = channel.gather(socket.gethostname())

    @property
    def neighbours(self) -> tuple[int, ...]:
        """The ranks of the first of the fullest hosts, where there are several hosts; or else nobody."""
        by_host: dict[str, list[int]] = {}
        for rank, host in enumerate(self.hosts):
            by_host.setdefault(host, []).append(rank)
        fullest = max(by_host.values(), key=len)
        return tuple(fullest) if len(by_host) > 1 and len(fullest) > 1 else ()

    def missing(self, library: str) -> str:
        """Why a library cannot be measured here; empty if it can."""
        if library == "horovod" and not horovod_is_built():
            return "Horovod is not built in this environment; `hvdtrain build-horovod` builds it"
        if library == "mpi" and not isinstance(self.channel, MpiChannel):
            return f"a {self.world.launcher} launch has no MPI; start the ranks with mpirun or srun"
        return ""

    def carries(self, library: str, dtype: str) -> bool:
        """Whether a library adds up this type. MPI's standard has no 16-bit floating point."""
        return library != "mpi" or dtype == "float32"

    def group(self, library: str, ranks: Sequence[int] = ()) -> AbstractContextManager[Sum | None]:
        """A library's allreduce over some ranks, all of them if none are named; collective over all ranks.

        Gives None on a rank that does not belong to it.

        Args:
            library: One that is not missing.
            ranks: Ascending.
        """
        if library == "mpi":
            assert isinstance(self.channel, MpiChannel), "it is missing otherwise"
            return self.channel.group(ranks)
        return (_horovod_group if library == "horovod" else _torch_group)(self, ranks)

    def buffer_device(self, library: str) -> torch.device:
        """Where a library's buffers lie: MPI's in the host's memory, for not every MPI reads a GPU's."""
        return torch.device("cpu") if library == "mpi" else self.device

    def can_split(self, library: str) -> bool:
        """Whether a library can be measured over a part of the ranks: Horovod only where MPI started them."""
        return library != "horovod" or isinstance(self.channel, MpiChannel)


@contextmanager
def open_crew(world: World, *, on_cpu: bool) -> Iterator[Crew]:
    """Brings the ranks together; collective.

    MPI, where it started them, is initialised here and stays up to the end: Horovod, which would end it
    otherwise, can then be started again over other ranks.

    Args:
        world: Which rank this is.
        on_cpu: Whether buffers lie in the host's memory, though there are GPUs.

    Raises:
        InputError: The ranks do not find each other, or have no GPU each.
    """
    device = torch.device("cpu") if on_cpu else choose_device(world)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    has_mpi = world.launcher not in _WITHOUT_MPI
    channel: Channel = MpiChannel(world) if has_mpi else DdpBackend(world, device)
    # Not in a finally: a rank that failed must not wait for the others.
    yield Crew(world, device, channel)
    channel.close()


@contextmanager
def _horovod_group(crew: Crew, ranks: Sequence[int]) -> Iterator[Sum | None]:
    try:
        from hvdtrain.backends.horovod import HorovodBackend
    except ImportError as error:
        raise build_fits_torch(error) from None
    world = crew.world
    if ranks and world.rank not in ranks:
        yield None
        return
    if ranks:
        world = _alone(world, list(ranks).index(world.rank), len(ranks))
    backend = HorovodBackend(world, crew.device, ranks)
    yield backend.sum_in_place
    backend.close()


def _alone(world: World, rank: int, size: int) -> World:
    """A host's ranks as a world of their own."""
    return World(rank, size, local_rank=rank, local_size=size, launcher=world.launcher)


@contextmanager
def _torch_group(crew: Crew, ranks: Sequence[int]) -> Iterator[Sum | None]:
    own = None if isinstance(crew.channel, DdpBackend) else DdpBackend(crew.world, crew.device)
    group = dist.new_group(list(ranks)) if ranks else None

    def add_up(values: torch.Tensor, _name: str) -> None:
        dist.all_reduce(values, group=group)

    yield add_up if not ranks or crew.world.rank in ranks else None
    if own is not None:
        own.close()

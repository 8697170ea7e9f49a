"""torch.distributed's DistributedDataParallel, over gloo on CPUs and NCCL on GPUs.

The peer of Horovod, with the same meaning: replicas start as rank 0's, gradients are means
over the ranks.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from datetime import timedelta
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from hvdtrain.backends.base import Backend, Replica
from hvdtrain.errors import InputError
from hvdtrain.topology.environ import World

# PyTorch 2.13 gave the option that synchronises buffers in every forward pass a new name.
_NAMES = signature(DistributedDataParallel).parameters
_SYNC_BUFFERS = next(name for name in ("forward_sync_buffers", "broadcast_buffers") if name in _NAMES)
_TIMEOUT = timedelta(minutes=10)


class DdpBackend(Backend):
    """torch.distributed on the ranks that a launcher of any kind started."""

    name = "ddp"

    def __init__(self, world: World, device: torch.device) -> None:
        super().__init__(world, device)
        engine = "gloo"
        if device.type == "cuda":
            torch.cuda.set_device(device)
            # gloo beside NCCL carries what lives on the CPU: objects and sums of metrics.
            engine = "cpu:gloo,cuda:nccl"
        if world.local_size == world.size:
            # All ranks share this machine: its name may not resolve, its loopback always works.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        address = rendezvous(world, os.environ)
        dist.init_process_group(
            engine, init_method=address, rank=world.rank, world_size=world.size, timeout=_TIMEOUT
        )

    def distribute(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        compression: str = "none",
        some_unused: bool = False,
    ) -> Replica:
        self._agree_optimizer(optimizer)
        self.agree_buffers(model)
        # DDP itself broadcasts rank 0's parameters. Buffers are agreed before each evaluation, as
        # with Horovod, not in every step.
        ids = [self.device.index] if self.device.type == "cuda" else None
        options: dict[str, Any] = {"device_ids": ids, _SYNC_BUFFERS: False}
        options["find_unused_parameters"] = some_unused
        distributed = DistributedDataParallel(model, **options)
        if compression == "fp16":
            distributed.register_comm_hook(None, fp16_compress_hook)
        return Replica(distributed, optimizer, model, needs_backward=True)

    def sum(self, values: torch.Tensor, name: str) -> torch.Tensor:  # noqa: ARG002
        total = values.clone()
        dist.all_reduce(total)
        return total

    def broadcast(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def agree_buffers(self, module: nn.Module) -> None:
        for _, buffer in module.named_buffers():
            dist.broadcast(buffer, src=0)

    def close(self) -> None:
        # The barrier carries no tensor of ours: what the engine's threads still hold is older.
        dist.barrier()
        _settle()
        dist.destroy_process_group()


def _settle(patience_s: float = 2.0) -> None:
    """Waits until gloo's threads, which outlive the process group, have nothing left to do.

    One that still drops the tensors of the last collective asks for the interpreter's lock. Where
    the interpreter ends meanwhile, Python 3.11 ends that thread by an exception that C++ does not
    expect, and the process dies of SIGABRT after all its work was done.
    """
    quiet_samples = 0
    deadline_s = time.monotonic() + patience_s
    while quiet_samples < 2 and time.monotonic() < deadline_s:
        time.sleep(0.001)  # gives up the lock: a thread that waits for it gets it now
        quiet_samples = 0 if _gloo_is_busy() else quiet_samples + 1


def _gloo_is_busy() -> bool:
    """Whether a thread of gloo's runs or is ready to; see proc(5), ``/proc/PID/task/TID/stat``."""
    for thread in Path("/proc/self/task").glob("*"):
        try:
            name, state = (thread / "stat").read_text().partition("(")[2].rsplit(") ", 1)
        except OSError:  # it has ended
            continue
        if name.startswith("pt_gloo") and not state.startswith("S"):
            return True
    return False


def rendezvous(world: World, env: Mapping[str, str]) -> str:
    """Where the ranks meet, as an ``init_method``.

    From MASTER_ADDR and MASTER_PORT where a launcher set them (torchrun and our own do), or
    else rank 0's address, told through MPI.

    Raises:
        InputError: Neither is there.
    """
    if "MASTER_ADDR" in env and "MASTER_PORT" in env:
        return f"tcp://{env['MASTER_ADDR']}:{env['MASTER_PORT']}"
    if world.size == 1:
        return f"tcp://127.0.0.1:{_free_port()}"
    return f"tcp://{_address_through_mpi(world)}"


def _address_through_mpi(world: World) -> str:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"the ranks of a {world.launcher} launch do not know where to meet: {error}",
            do="set MASTER_ADDR and MASTER_PORT, or start with `hvdtrain train -np`",
        ) from None
    if MPI.COMM_WORLD.size != world.size:
        raise InputError(
            f"{world.launcher} started {world.size} ranks but MPI sees {MPI.COMM_WORLD.size}",
            do="set MASTER_ADDR and MASTER_PORT",
        )
    host = "127.0.0.1" if world.local_size == world.size else socket.gethostname()
    address = f"{host}:{_free_port()}" if world.rank == 0 else None
    return str(MPI.COMM_WORLD.bcast(address, root=0))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])

"""Horovod: gradients averaged by allreduce with tensor fusion. The only file that imports it.

``python -m hvdtrain.backends.horovod`` under a launcher proves an installation: rank 0 prints
one JSON line with the sum that an allreduce gave.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import groupby
from typing import Any

import horovod.torch as hvd
import psutil
import torch
from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
from horovod.runner.gloo_run import create_slot_env_vars
from horovod.runner.http.http_server import RendezvousServer
from torch import nn
from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from hvdtrain.backends.base import PLAIN, Backend, Reduction, Replica
from hvdtrain.backends.choose import DDP_ADVICE
from hvdtrain.backends.meeting import check_met
from hvdtrain.backends.short_path import shorten
from hvdtrain.errors import InputError
from hvdtrain.topology.environ import World, check_engine_size, find_world

# What its PyTorch library has reductions for.
_REDUCED = (torch.float32, torch.float64, torch.float16, torch.int32, torch.int64, torch.uint8, torch.int8)
_COMPRESSION = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16}


class HorovodBackend(Backend):
    """Horovod over MPI or Gloo, NCCL for the gradients where it was built in.

    The variables of ``tuning.horovod_environment`` must be set before this is made.

    Args:
        world: Which rank this is, among those that it is made over.
        device: Where it computes.
        ranks: Ranks of MPI's world that it is made over, all if none are named. MPI must be up before. In
            this process Horovod 0.28.1 then stays with them, whatever a later one names.
    """

    name = "horovod"

    def __init__(self, world: World, device: torch.device, ranks: Sequence[int] = ()) -> None:
        if world.launcher in ("torchrun", "local") and world.size > 1:
            # Rank 0's store serves the others: it must outlive their start.
            self._store, _, _ = next(rendezvous("env://", world.rank, world.size))
            os.environ.update(_meet_over_gloo(world, self._store))
        hvd.init(comm=list(ranks))
        check_engine_size(world, hvd.size())
        if device.type == "cuda" and not hvd.nccl_built():
            # 0.28.1 would abort in its background thread at the first tensor on a GPU.
            raise InputError(
                "backend: this Horovod was built without NCCL, and the ranks see GPUs",
                do="run `hvdtrain build-horovod --gpu nccl`, or hide the GPUs with CUDA_VISIBLE_DEVICES=, or "
                f"{DDP_ADVICE}",
            )
        super().__init__(world, device)
        if device.type == "cuda":
            torch.cuda.set_device(device)

    def distribute(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, reduction: Reduction = PLAIN
    ) -> Replica:
        self.check_optimizer(model, optimizer)
        _check_reduction(reduction, self.size)
        self.check_alike(model)
        for name, parameter in model.named_parameters():
            _check_carried(name, parameter)
        _broadcast_in_place(dict(model.named_parameters()) | dict(model.named_buffers()))
        is_adasum = reduction.kind == "adasum"
        distributed = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=[(reduction.prefix + name, value) for name, value in model.named_parameters()],
            compression=_COMPRESSION[reduction.compression],
            op=hvd.Adasum if is_adasum else hvd.Average,
        )
        type(distributed).zero_grad = _zero_grad
        if not is_adasum and reduction.compression == "none" and not hvd.rocm_built():
            shorten(distributed, hvd.mpi_ops)
        if optimizer.state:
            # The distributed optimizer is a new object: what was in the old one's state is gone.
            distributed.load_state_dict(optimizer.state_dict())
        self._agree_optimizer(distributed)
        return (_AdasumReplica if is_adasum else _HorovodReplica)(model, distributed)

    def sum(self, values: torch.Tensor, name: str) -> torch.Tensor:
        return torch.as_tensor(hvd.allreduce(values, op=hvd.Sum, name=name))

    def sum_in_place(self, values: torch.Tensor, name: str) -> None:
        """As ``sum``, but into ``values`` themselves: for measurements, without a copy."""
        hvd.allreduce_(values, op=hvd.Sum, name=name)

    def start_sum(self, values: torch.Tensor, name: str) -> Callable[[], torch.Tensor]:
        handle = hvd.allreduce_async(values, op=hvd.Sum, name=name)
        return lambda: torch.as_tensor(hvd.synchronize(handle))

    def broadcast(self, value: Any) -> Any:
        return hvd.broadcast_object(value, root_rank=0, name="broadcast")

    def gather(self, value: Any) -> list[Any]:
        return list(hvd.allgather_object(value, name="gather"))

    def prepare_meeting(self) -> Callable[[str], None]:
        return lambda place: check_met(hvd.allgather_object(place, name="meeting"))

    def broadcast_tensor(self, tensor: torch.Tensor, name: str) -> None:
        _broadcast_in_place({name: tensor})

    def agree_buffers(self, module: nn.Module) -> None:
        _broadcast_in_place(dict(module.named_buffers()))

    def close(self) -> None:
        hvd.shutdown()


class _HorovodReplica(Replica):
    """Driven through Horovod's DistributedOptimizer, whose hooks reduce during the backward pass."""

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        super().__init__(model, optimizer, model)
        self._distributed = optimizer

    def begin_pass(self, is_first: bool, is_last: bool, num_passes: int) -> None:  # noqa: ARG002
        optimizer = self._distributed
        if is_first and (optimizer._handles or optimizer.backward_passes_per_step != num_passes):
            # A loop that was left in the middle of a step leaves passes that wait for the rest of it.
            optimizer._handles.clear()
            optimizer.set_backward_passes_per_step(num_passes)

    def finish(self) -> None:
        # It makes dense zeros for a missing gradient, which do not go with the sparse ones of other ranks.
        for parameter in self._sparse:
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = self._zero_gradient(parameter)
        self._distributed.synchronize()
        if hvd.size() == 1:
            self._fill_gradients()  # alone, Horovod reduces nothing and fills nothing

    def hear_gradients(self, heard: Callable[[torch.Tensor], None]) -> Callable[[], None]:
        if hvd.size() == 1:  # alone, Horovod sets no hooks
            return super().hear_gradients(heard)
        optimizer = self._distributed
        start = optimizer._allreduce_grad_async

        def hear_and_start(parameter: torch.Tensor) -> Any:
            heard(parameter)
            return start(parameter)

        # Its own hooks call this; nothing of it is left in the parameters afterwards.
        optimizer._allreduce_grad_async = hear_and_start

        def end() -> None:
            vars(optimizer).pop("_allreduce_grad_async", None)

        return end

    def apply(self) -> None:
        with self._distributed.skip_synchronize():
            self._distributed.step()


class _AdasumReplica(_HorovodReplica):
    """Its optimizer steps locally in the hooks and reduces what changed: ``finish`` has no gradients."""

    needs_backward = True
    has_gradients = False

    def finish(self) -> None:
        """Nothing: the reduction is the step."""

    def apply(self) -> None:
        self.optimizer.step()


def _zero_grad(optimizer: Any, set_to_none: bool = True) -> None:
    """Takes PyTorch's argument, which Horovod 0.28.1's own does not."""
    if optimizer._handles:
        raise InputError(
            "a backward pass was made outside of run.step, whose gradients are on their way",
            do="leave out loss.backward() and optimizer.zero_grad(): run.step does both",
        )
    super(type(optimizer), optimizer).zero_grad(set_to_none=set_to_none)


def _check_reduction(reduction: Reduction, size: int) -> None:
    if reduction.compression not in _COMPRESSION:
        raise InputError(
            f"Horovod cannot reduce {reduction.compression}",
            where="tuning.compression",
            legal=" or ".join(_COMPRESSION),
            do="use fp16, or backend=ddp on GPUs",
        )
    if reduction.kind == "adasum" and (size & (size - 1) or not hvd.mpi_enabled()):
        raise InputError(
            f"Adasum needs MPI and a power of two of ranks, there are {size}",
            where="gradients.reduce",
            do="start 2, 4, 8 ... ranks under mpirun, or set gradients.reduce to mean",
        )


def _check_carried(name: str, parameter: torch.Tensor) -> None:
    """Refuses a parameter whose gradient Horovod 0.28.1 cannot reduce."""
    if parameter.dtype not in _REDUCED:
        kind = str(parameter.dtype).removeprefix("torch.")
        raise InputError(f"Horovod cannot reduce parameter {name!r} of type {kind}", do=DDP_ADVICE)
    if not parameter.is_contiguous():
        raise InputError(f"Horovod cannot reduce parameter {name!r}: it is not contiguous", do=DDP_ADVICE)


def _broadcast_in_place(tensors: dict[str, torch.Tensor]) -> None:
    """Gives all ranks rank 0's values; what Horovod cannot carry as it is travels as a copy."""
    carried: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        value = tensor.data
        if value.dtype not in _REDUCED:
            value = value.reshape(-1).view(torch.uint8)
        carried[name] = value.contiguous()
    hvd.broadcast_parameters(carried, root_rank=0)
    for name, tensor in tensors.items():
        if carried[name].data_ptr() != tensor.data_ptr():
            tensor.data.copy_(carried[name].view(tensor.dtype).view(tensor.shape))


def _meet_over_gloo(world: World, store: Store) -> dict[str, str]:
    """The variables with which Horovod starts on Gloo where no MPI started the ranks.

    What ``horovodrun --gloo`` does from outside (Horovod 0.28.1, ``runner/gloo_run.py``), done by
    the ranks themselves: rank 0 serves Horovod's rendezvous, and all find it through the store
    that MASTER_ADDR and MASTER_PORT name. Ranks of one host are numbered without a gap.
    """
    store.set(f"hvdtrain/host/{world.rank}", socket.gethostname())
    names = [store.get(f"hvdtrain/host/{rank}").decode() for rank in range(world.size)]
    hosts = [HostInfo(name, len(list(ranks))) for name, ranks in groupby(names)]
    plan = get_host_assignments(hosts, world.size)
    if world.rank == 0:
        server = RendezvousServer()
        port = server.start()
        server.init(plan)
        store.set("hvdtrain/port", str(port))
    address = os.environ["MASTER_ADDR"]
    return {
        **{name: str(value) for name, value in create_slot_env_vars(plan[world.rank]).items()},
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": socket.gethostbyname(address),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": store.get("hvdtrain/port").decode(),
        "HOROVOD_GLOO_IFACE": "lo" if len(hosts) == 1 else _interface_towards(address),
    }


def _interface_towards(address: str) -> str:
    """The name of the network interface that packets to ``address`` leave by."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Connecting a datagram socket sends nothing, it only looks up the route.
        probe.connect((address, 9))
        own = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == own for entry in addresses):
            return str(name)
    raise InputError(f"no network interface has the address {own} that leads to {address}")


def _prove() -> int:
    """A sum over all ranks; 0 when it is right."""
    hvd.init()
    world = find_world(os.environ)
    check_engine_size(world, hvd.size())
    total = float(hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum)[0])
    if hvd.rank() == 0:
        facts = {
            "size": hvd.size(),
            "sum": total,
            "horovod": version("horovod"),
            "mpi_built": bool(hvd.mpi_built()),
            "gloo_built": bool(hvd.gloo_built()),
            "nccl_built": bool(hvd.nccl_built()),
        }
        sys.stdout.write(json.dumps(facts) + "\n")
    right = total == hvd.size() * (hvd.size() + 1) / 2
    hvd.shutdown()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(_prove())

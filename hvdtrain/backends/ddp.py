"""torch.distributed's DistributedDataParallel, over gloo on CPUs and NCCL on GPUs.

The peer of Horovod, with the same meaning: replicas start as rank 0's, gradients are means
over the ranks.
"""

from __future__ import annotations

import ctypes
import os
import socket
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from hvdtrain.backends.base import PLAIN, Backend, Reduction, Replica, sparse_parameters
from hvdtrain.backends.meeting import check_met
from hvdtrain.errors import InputError
from hvdtrain.topology.environ import World

# PyTorch 2.13 gave the option that synchronises buffers in every forward pass a new name.
_NAMES = signature(DistributedDataParallel).parameters
_SYNC_BUFFERS = next(name for name in ("forward_sync_buffers", "broadcast_buffers") if name in _NAMES)
_HOOKS = {"none": None, "fp16": fp16_compress_hook, "bf16": bf16_compress_hook}
_TIMEOUT = timedelta(minutes=10)
# Of the group in which ranks meet after one of them worked alone.
_PATIENCE = timedelta(days=30)


class DdpBackend(Backend):
    """torch.distributed on the ranks that a launcher of any kind started."""

    name = "ddp"
    # gloo takes what comes next for what it waits for, and aborts the process where sizes differ.
    tells_apart = False

    def __init__(self, world: World, device: torch.device) -> None:
        super().__init__(world, device)
        self._patient: dist.ProcessGroup | None = None
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
        self, model: nn.Module, optimizer: torch.optim.Optimizer, reduction: Reduction = PLAIN
    ) -> Replica:
        if reduction.kind != "mean":
            raise InputError(f"backend ddp has no {reduction.kind}", do="use backend=horovod")
        if reduction.compression == "bf16" and self.device.type != "cuda":
            raise InputError(
                "ddp carries bf16 gradients over NCCL only, and the ranks compute on CPUs",
                where="tuning.compression",
                do="use none or fp16",
            )
        self.check_optimizer(model, optimizer)
        self.check_alike(model)
        self._agree_optimizer(optimizer)
        self.agree_buffers(model)
        # DDP itself broadcasts rank 0's parameters. Buffers are agreed before each evaluation, as
        # with Horovod, not in every step.
        # A sparse gradient that one rank lacks ends DDP's reduction: we carry these ourselves.
        sparse = sparse_parameters(model)
        names = [name for name, parameter in model.named_parameters() if parameter in sparse]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)  # type: ignore[no-untyped-call]
        for parameter in sparse:
            dist.broadcast(parameter.data, src=0)
        ids = [self.device.index] if self.device.type == "cuda" else None
        options: dict[str, Any] = {"device_ids": ids, _SYNC_BUFFERS: False}
        options["find_unused_parameters"] = reduction.some_unused
        distributed = DistributedDataParallel(model, **options)
        if hook := _HOOKS[reduction.compression]:
            distributed.register_comm_hook(None, hook)
        return _DdpReplica(distributed, optimizer, model, _Hush() if reduction.some_unused else None)

    def sum(self, values: torch.Tensor, name: str) -> torch.Tensor:  # noqa: ARG002
        total = values.clone()
        dist.all_reduce(total)
        return total

    def start_sum(self, values: torch.Tensor, name: str) -> Callable[[], torch.Tensor]:  # noqa: ARG002
        total = values.clone()
        work = dist.all_reduce(total, async_op=True)

        def wait() -> torch.Tensor:
            work.wait()
            return total

        return wait

    def broadcast(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def prepare_meeting(self) -> Callable[[str], None]:
        if self._patient is None:
            self._patient = dist.new_group(backend="gloo", timeout=_PATIENCE)

        def meet(place: str) -> None:
            places = [""] * self.size
            dist.all_gather_object(places, place, group=self._patient)
            check_met(places)

        return meet

    def broadcast_tensor(self, tensor: torch.Tensor, name: str) -> None:  # noqa: ARG002
        dist.broadcast(tensor, src=0)

    def agree_buffers(self, module: nn.Module) -> None:
        for _, buffer in module.named_buffers():
            dist.broadcast(buffer, src=0)

    def close(self) -> None:
        # The barrier carries no tensor of ours: what the engine's threads still hold is older.
        dist.barrier()
        _settle()
        dist.destroy_process_group()


class _Hush:
    """Keeps PyTorch's C++ warnings back during the first step.

    Where parameters may be unused, DDP warns on every rank when the first step used them all. It is written
    by C++ straight to stderr, past Python's warnings, and the level is read from the environment before
    a user's script can set it.
    """

    _ERROR = 2

    def __init__(self) -> None:
        folder = Path(torch.__file__).parent / "lib"
        try:
            level = ctypes.c_int.in_dll(ctypes.CDLL(str(folder / "libc10.so")), "FLAGS_caffe2_log_level")
        except (OSError, ValueError):  # another build of PyTorch: the warning stays
            level = ctypes.c_int(self._ERROR)
        self._level, self._before = level, level.value

    def begin(self) -> None:
        """The step begins."""
        self._level.value = max(self._before, self._ERROR)

    def end(self) -> None:
        """It is over."""
        self._level.value = self._before


class _DdpReplica(Replica):
    """Driven through DDP, which reduces inside the backward pass."""

    needs_backward = True

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, module: nn.Module, hush: _Hush | None
    ) -> None:
        super().__init__(model, optimizer, module)
        self._hush = hush
        self._is_called = False
        model.register_forward_pre_hook(self._note_call)

    def begin_pass(self, is_first: bool, is_last: bool, num_passes: int) -> None:  # noqa: ARG002
        if self._hush:
            self._hush.begin()
        self._is_called = False
        # What ``no_sync`` sets; DDP looks at it in the forward pass.
        self.model.require_backward_grad_sync = is_last  # type: ignore[assignment]

    def finish(self) -> None:
        if self._hush:
            self._hush.end()
            self._hush = None
        if not self._is_called:
            # Past DDP nothing is reduced: every rank would train a model of its own.
            raise InputError(
                "the loss of this step does not come from the model that run.distribute returned",
                do="write: model, optimizer = run.distribute(model, optimizer), and call that model",
            )
        self._fill_gradients()
        for parameter in self.trained:
            if parameter in self._sparse and parameter.grad is not None:
                parameter.grad = _mean_of_sparse(parameter.grad)

    def _note_call(self, _model: nn.Module, _inputs: Any) -> None:
        self._is_called = True


def _mean_of_sparse(gradient: torch.Tensor) -> torch.Tensor:
    """The mean over ranks of sparse gradients with any rows, by gathering the rows of all ranks."""
    own = gradient.coalesce()
    rows, values = own.indices()[0], own.values()
    counts = _gathered(torch.tensor([len(rows)], device=rows.device))
    most = max(int(count) for count in counts)
    all_rows = _gathered(torch.cat([rows, rows.new_zeros(most - len(rows))]))
    all_values = _gathered(torch.cat([values, values.new_zeros(most - len(rows), *values.shape[1:])]))
    kept = [slice(int(count)) for count in counts]
    summed = torch.sparse_coo_tensor(
        torch.cat([part[keep] for part, keep in zip(all_rows, kept, strict=True)]).unsqueeze(0),
        torch.cat([part[keep] for part, keep in zip(all_values, kept, strict=True)]),
        gradient.shape,
        check_invariants=False,
    )
    return summed.coalesce() / len(counts)


def _gathered(tensor: torch.Tensor) -> list[torch.Tensor]:
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return parts


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

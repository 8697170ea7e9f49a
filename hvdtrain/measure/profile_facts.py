"""What a profile says besides its times: the job, the machine, the replica's memory."""

from __future__ import annotations

import os
import platform
import resource
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from hvdtrain.backends.base import Backend, parameters_of
from hvdtrain.measure.profile_gradients import num_bytes
from hvdtrain.measure.profile_times import Table, rank_times, step_times
from hvdtrain.scaling.overlap import HOROVOD, fused
from hvdtrain.scaling.profile import (
    FusedBuffer,
    Gpu,
    Gradients,
    HostRanks,
    Loader,
    Memory,
    NoiseScale,
    Profile,
    RankTimes,
)
from hvdtrain.version import __version__


@dataclass(frozen=True)
class JobFacts:
    """What is trained; see ``scaling.profile.Profile``."""

    job: str
    source: str
    precision: str
    compression: str
    global_batch: int
    accumulate: int
    num_workers: int
    samples_per_epoch: int | None = None
    epochs: float | None = None
    total_steps: int | None = None


@dataclass(frozen=True)
class Seats:
    """Host and cores of the ranks.

    Attributes:
        hosts: By rank.
        cores_per_rank: Cores of this rank, over the ranks of its host that may use one of them too.
    """

    hosts: tuple[str, ...]
    cores_per_rank: float


def find_seats(backend: Backend) -> Seats:
    """Tells all ranks where they are; collective."""
    mine = frozenset(os.sched_getaffinity(0))
    told = backend.gather((socket.gethostname(), mine))
    host = told[backend.rank][0]
    rivals = sum(name == host and not mine.isdisjoint(cores) for name, cores in told)
    return Seats(tuple(name for name, _ in told), len(mine) / max(1, rivals))


@dataclass(frozen=True)
class Replicated:
    """What lies in the memory of each rank."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    device: torch.device

    def memory(self) -> Memory:
        """Its sizes; the peak is of the device's memory, or without one of this process."""
        trained = [value for value in parameters_of(self.optimizer) if value.requires_grad]
        return Memory(
            parameters_bytes=num_bytes(list(self.module.parameters())),
            gradients_bytes=num_bytes(trained),
            optimizer_bytes=num_bytes(list(_tensors(self.optimizer.state))),
            buffers_bytes=num_bytes(list(self.module.buffers())),
            peak_bytes=_peak_bytes(self.device),
        )


@dataclass(frozen=True)
class Measured:
    """What was measured.

    Attributes:
        table: Times of the steps of all ranks.
        gradients: Of one rank.
        loader: Of one rank.
        gpu: Mean over the ranks.
        noise_scale: Of the training.
    """

    table: Table
    gradients: Gradients
    loader: Loader
    gpu: Gpu | None = None
    noise_scale: NoiseScale | None = None


def make_profile(
    facts: JobFacts, seats: Seats, backend: Backend, replicated: Replicated, measured: Measured
) -> Profile:
    """Puts a profile together.

    Args:
        facts: Of the job.
        seats: Of the ranks.
        backend: The engine.
        replicated: What each rank holds.
        measured: At least two steps: of one nothing is known of how steps vary.
    """
    steps, ranks = step_times(measured.table), rank_times(measured.table, seats.hosts)
    gpu = measured.gpu
    if gpu is not None:
        gpu = replace(gpu, energy_j_per_step=gpu.power_w * steps.mean)
    name, memory_bytes = _device(backend.device)
    hosts = seats.hosts
    return Profile(
        job=facts.job,
        source=facts.source,
        hvdtrain=__version__,
        torch=str(torch.__version__),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        backend=backend.name,
        device=backend.device.type,
        device_name=name,
        device_memory_bytes=memory_bytes,
        size=backend.size,
        hosts=tuple(HostRanks(host, hosts.count(host)) for host in dict.fromkeys(hosts)),
        precision=facts.precision,
        compression=facts.compression,
        global_batch=facts.global_batch,
        accumulate=facts.accumulate,
        samples_per_epoch=facts.samples_per_epoch,
        epochs=facts.epochs,
        total_steps=facts.total_steps,
        steps=len(measured.table),
        step_s=steps,
        ranks=ranks,
        gradients=measured.gradients,
        fused=_fused(backend, measured.gradients, ranks),
        loader=measured.loader,
        memory=replicated.memory(),
        gpu=gpu,
        noise_scale=measured.noise_scale,
        samples_per_s=facts.global_batch / steps.mean,
    )


def _fused(
    backend: Backend, gradients: Gradients, ranks: tuple[RankTimes, ...], env: Mapping[str, str] = os.environ
) -> tuple[FusedBuffer, ...]:
    """The buffers that Horovod made, computed as its engine does; it does not tell them.

    From when the gradients were ready, its threshold and cycle (``env``: its own variables, which this
    process has set before it began) and the mean exposed time.
    """
    if backend.name != "horovod" or backend.size == 1 or not gradients.ready:
        return ()
    limit, cycle_ms = env.get("HOROVOD_FUSION_THRESHOLD"), env.get("HOROVOD_CYCLE_TIME")
    fusing = replace(
        HOROVOD,
        limit_bytes=float(limit) if limit else HOROVOD.limit_bytes,
        cycle_s=float(cycle_ms) / 1e3 if cycle_ms else HOROVOD.cycle_s,
    )
    backward_s = max(one.ready_s for one in gradients.ready)
    exposed_s = fmean(one.exposed_s for one in ranks)
    buffers = fused(gradients.ready, fusing, backward_s, exposed_s)
    return tuple(FusedBuffer(round(one.bytes), one.num_tensors) for one in buffers)


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested containers."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from _tensors(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _tensors(value)


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # getrusage(2): KiB on Linux


def _device(device: torch.device) -> tuple[str, int | None]:
    """Its name, and its own memory in bytes if it has one."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return properties.name, properties.total_memory
    return _processor(), None


def _processor() -> str:
    """The processor's name as the kernel tells it, or else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, names), platform.machine() or "cpu")

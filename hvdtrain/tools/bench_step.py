"""One rank of ``hvdtrain bench step``: a job's steps with a batch in memory, and with its loader."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from statistics import mean, median, quantiles
from typing import Any

import torch

from hvdtrain.backends.base import Backend
from hvdtrain.backends.choose import choose_backend
from hvdtrain.backends.start import start_backend
from hvdtrain.config import Job
from hvdtrain.data.loader import Batch, PartitionLoader
from hvdtrain.errors import ExitCode
from hvdtrain.topology.environ import World, find_world
from hvdtrain.train.build import build_parts
from hvdtrain.train.ending import end_rank
from hvdtrain.train.environment import prepare_environment
from hvdtrain.train.launching import IMPORT_PATH, JOB
from hvdtrain.train.observe import Length
from hvdtrain.train.parts import Parts
from hvdtrain.train.rank import relay
from hvdtrain.train.seats import take_seats
from hvdtrain.train.trainer import Trainer

# Named here and in cli.bench_job, which must not import torch.
STEPS = "HVDTRAIN_BENCH_STEPS"
_WARM_UPS = 5  # steps; the first ones allocate, and fill Horovod's cache


def bench_step(job: Job, world: World, num_steps: int) -> dict[str, Any]:
    """Times steps as one rank; collective.

    Args:
        job: The job, the same on all ranks. Its length is not used.
        world: Which rank this is.
        num_steps: Steps of each kind that are timed.

    Returns:
        The document, schema 1, the same on all ranks.
    """
    name, _ = choose_backend(job.backend, world.size)
    prepare_environment(job.tuning, world, name)
    backend = start_backend(name, world)
    seating = take_seats(backend)
    parts = _endless_parts(build_parts(job, backend, None, _say_nothing))
    trainer = Trainer(parts)
    try:
        parts.stepper.replica.model.train()
        held = list(_first_step(parts.train))
        in_memory = _timed(trainer, backend, chain.from_iterable(repeat(held)), num_steps)
        loaded = _timed(trainer, backend, _epochs(parts.train), num_steps)
    finally:
        trainer.close()
    hosts = [seat.host for seat in seating.seats]
    document = {
        "schema": 1,
        "kind": "step",
        "job": job.name,
        "backend": backend.name,
        "device": backend.device.type,
        "size": backend.size,
        "hosts": [{"name": host, "ranks": hosts.count(host)} for host in dict.fromkeys(hosts)],
        "global_batch": job.global_batch(backend.size),
        "accumulate": job.batch.accumulate,
        "workers": job.data.workers,
        "steps": num_steps,
        "in_memory": in_memory,
        "with_loader": loaded,
        "data_share": max(0.0, 1 - in_memory["median_s"] / loaded["median_s"]),
    }
    backend.close()
    return document


def _endless_parts(parts: Parts) -> Parts:
    """A run that never ends nor measures its loss, at a learning rate of 0, with which no step diverges."""
    length = Length(sys.maxsize, sys.maxsize, parts.length.steps_per_epoch)
    return replace(parts, length=length, metrics_every_steps=sys.maxsize, rate=lambda _step: 0.0)


def _first_step(loader: PartitionLoader) -> Iterator[Batch]:
    """The passes of this rank's first step."""
    for batch in loader.batches(0):
        yield batch
        if batch.is_last:
            return


def _epochs(loader: PartitionLoader) -> Iterator[Batch]:
    """Epoch after epoch, as training reads them."""
    epoch = 0
    while True:
        yield from loader.batches(epoch)
        epoch += 1


@dataclass
class _Clock:
    """Hands batches on up to a number of steps, and notes when each step began."""

    batches: Iterable[Batch]
    num_steps: int
    began_s: list[float] = field(default_factory=list)

    def __iter__(self) -> Iterator[Batch]:
        self.began_s.append(time.perf_counter())
        for batch in self.batches:
            yield batch
            if batch.is_last:
                self.began_s.append(time.perf_counter())
                if len(self.began_s) > self.num_steps:
                    return


def _timed(trainer: Trainer, backend: Backend, batches: Iterable[Batch], num_steps: int) -> dict[str, float]:
    """Seconds per step, of each step those of its slowest rank; collective."""
    clock = _Clock(batches, _WARM_UPS + num_steps)
    trainer.run_steps(clock, 0)
    if backend.device.type == "cuda":
        torch.cuda.synchronize(backend.device)
    own = [end - begin for begin, end in zip(clock.began_s, clock.began_s[1:], strict=False)][_WARM_UPS:]
    return summary([max(times) for times in zip(*backend.gather(own), strict=True)])


def summary(times: Sequence[float]) -> dict[str, float]:
    """Median, mean, 95 %, least and most of some seconds."""
    return {
        "median_s": median(times),
        "mean_s": mean(times),
        "p95_s": quantiles(times, n=20, method="inclusive")[-1] if len(times) > 1 else times[0],
        "min_s": min(times),
        "max_s": max(times),
    }


def _say_nothing(_event: dict[str, Any]) -> None:
    """A measurement has no audience."""


def main(env: Mapping[str, str]) -> int:
    """The program of a rank."""
    try:
        world = find_world(env)
        sys.path += [folder for folder in env.get(IMPORT_PATH, "").split(os.pathsep) if folder]
        document = bench_step(Job.model_validate_json(env[JOB]), world, int(env[STEPS]))
        if world.rank == 0:
            relay({"event": "result", "document": document})
    except BaseException as error:
        end_rank(error)
    return int(ExitCode.DONE)


if __name__ == "__main__":
    sys.exit(main(os.environ))

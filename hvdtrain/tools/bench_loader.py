"""``hvdtrain bench loader``: how fast a job's own loader is, with no training behind it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hvdtrain.backends.base import Backend
from hvdtrain.backends.start import start_backend
from hvdtrain.config import Job
from hvdtrain.data.loader import Batch, PartitionLoader
from hvdtrain.data.sources import Source, build_source
from hvdtrain.topology.environ import World
from hvdtrain.train.loading import agreed_listing, training_loader
from hvdtrain.train.randomness import seed_everything

Show = Callable[[dict[str, Any]], None]


def bench_loader(job: Job, workers: Sequence[int], num_batches: int, show: Show) -> dict[str, Any]:
    """Times the loader of one rank for each number of worker processes.

    Args:
        job: The job; its global batch is that of one rank, its number of workers is not used.
        workers: Numbers of worker processes, 0 for reading in the rank's own.
        num_batches: Batches to time each, after the first ones.
        show: Gets each row as it is measured.

    Returns:
        The document, schema 1.

    Raises:
        HvdtrainError: The data cannot be found or read.
    """
    backend = start_backend("single", World())
    seed_everything(job.seed)
    source = build_source(job.data, agreed_listing(job, backend))
    rows = []
    for count in workers:
        rows.append(_measure(job, backend, source, count, num_batches))
        show(rows[-1])
    return {
        "schema": 1,
        "kind": "loader",
        "job": job.name,
        "batch": job.global_batch(1),
        "accumulate": job.batch.accumulate,
        "cores": len(os.sched_getaffinity(0)),
        "rows": rows,
    }


def loader_title(job: Job) -> str:
    """What stands above the rows."""
    cores = len(os.sched_getaffinity(0))
    head = f"{'workers':>7} {'samples/s':>12} {'first batch (s)':>16} {'batches':>8} {'CPU s/sample':>13}"
    return f"{job.name}: batches of {job.global_batch(1)} on one rank, {cores} cores available\n{head}"


def loader_line(row: Mapping[str, Any]) -> str:
    """One row."""
    cost = row["cpu_s_per_sample"]
    last = "-" if cost is None else f"{cost:.3g}"
    rate, first_s = row["samples_per_s"], row["first_batch_s"]
    return f"{row['workers']:>7} {rate:>12.1f} {first_s:>16.4f} {row['batches']:>8} {last:>13}"


def _measure(job: Job, backend: Backend, source: Source, workers: int, num_batches: int) -> dict[str, Any]:
    data = job.data.model_copy(update={"workers": workers})
    with training_loader(job.model_copy(update={"data": data}), backend, source) as loader:
        began_s = time.perf_counter()
        batches = _endless(loader)
        next(batches)
        first_s = time.perf_counter() - began_s
        # Workers have read ahead, two batches each: what is timed must not begin with a full store.
        for _ in range(2 * workers):
            next(batches)
        began_s, cpu_s = time.perf_counter(), time.process_time()
        num_samples = sum(next(batches).count for _ in range(num_batches))
        took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    return {
        "workers": workers,
        "samples_per_s": num_samples / took_s,
        "first_batch_s": first_s,
        "batches": num_batches,
        "samples": num_samples,
        "seconds": took_s,
        # With workers the work is theirs.
        "cpu_s_per_sample": None if workers or not num_samples else cpu_s / num_samples,
    }


def _endless(loader: PartitionLoader) -> Iterator[Batch]:
    """Epoch after epoch, as training reads them."""
    epoch = 0
    while True:
        yield from loader.batches(epoch)
        epoch += 1

"""How fast a rank's loader is when no step holds it up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from hvdtrain.data.loader import Batch, PartitionLoader

_LIMIT_S = 3.0
_MOST_BATCHES = 200
_LEAST_S = 0.05  # less is not told apart from the clock of CPU time
_PREFETCHED = 2  # batches that PyTorch lets each worker read ahead


@dataclass(frozen=True)
class Pouring:
    """A loader that was emptied.

    Attributes:
        samples_per_s: None where it ended too early to tell.
        cpu_s_per_sample: Of this process and its workers; None as above.
    """

    samples_per_s: float | None = None
    cpu_s_per_sample: float | None = None


def pour(loader: PartitionLoader, workers: int, limit_s: float = _LIMIT_S) -> Pouring:
    """Reads batches and does nothing with them, until the time is over.

    What workers had read ahead while they were started is left out: it came faster than they can read.

    Args:
        loader: Of this rank.
        workers: Its processes.
        limit_s: Seconds, the start of the workers left out.
    """
    batches = _epochs(loader)
    for _ in range(1 + _PREFETCHED * workers):
        next(batches)
    began_s, began_cpu_s = time.perf_counter(), _cpu_s()
    samples = 0
    for number, batch in enumerate(batches, 1):
        samples += batch.count
        elapsed_s = time.perf_counter() - began_s
        if elapsed_s >= limit_s or (number >= _MOST_BATCHES and elapsed_s >= _LEAST_S):
            break
    elapsed_s = time.perf_counter() - began_s
    used_s = max(0.0, _cpu_s() - began_cpu_s)
    return Pouring(samples / elapsed_s, used_s / samples) if samples else Pouring()


def _epochs(loader: PartitionLoader) -> Iterator[Batch]:
    epoch = 0
    while True:
        yield from loader.batches(epoch)
        epoch += 1


def _cpu_s() -> float:
    """CPU time of this process and of what it started and still runs."""
    process = psutil.Process()
    seconds = 0.0
    for one in (process, *process.children(recursive=True)):
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        seconds += times.user + times.system
    return seconds

"""An epoch's order over up to 10^12 samples: ``python benchmarks/partition.py [--json]``.

``Partition`` beside PyTorch's ``DistributedSampler``, rank 3 of 8, shuffled, each in a process of
its own. Columns:

* first: time from nothing to the first index of an epoch, the median of 5 epochs; of 1 epoch where
  an epoch takes longer than 1 s. Imports are done before.
* rate: the next indices, at most 10^6, over the time until they came. Partition yields them in steps of 32.
* memory: the largest resident set up to then, less the resident set before, in MB of 1e6 bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from statistics import median
from typing import Any

from hvdtrain.process import command, spawn

RANK, RANKS, BATCH = 3, 8, 32
NUM_INDICES = 10**6

# What docs/performance.md holds it to at every size.
LIMIT_FIRST_MS = 1.0
LIMIT_MEMORY_MB = 20.0


def partition_indices(num_samples: int, epoch: int) -> Iterator[int]:
    """Our order of an epoch."""
    from hvdtrain.data.partition import Partition

    return Partition(num_samples, RANKS, BATCH).indices(RANK, epoch)


class Sized:
    """All that DistributedSampler wants of a data set: its length."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples


def sampler_indices(num_samples: int, epoch: int) -> Iterator[int]:
    """PyTorch's order of an epoch."""
    from torch.utils.data.distributed import DistributedSampler

    sampler: DistributedSampler[Any] = DistributedSampler(Sized(num_samples), RANKS, RANK)  # type: ignore[arg-type]
    sampler.set_epoch(epoch)
    return iter(sampler)


ORDERS: dict[str, Callable[[int, int], Iterator[int]]] = {
    "Partition": partition_indices,
    "DistributedSampler": sampler_indices,
}


def measure(order: str, num_samples: int) -> dict[str, float]:
    """Measures in this process, which must be fresh: its peak memory counts."""
    make = ORDERS[order]
    next(make(RANKS, 0))
    for _ in islice(partition_indices(10**6, 0), 1000):  # imports NumPy for both
        pass
    before_mb = resident_mb()
    first_s: list[float] = []
    while len(first_s) < 5 and sum(first_s) < 1:
        begin = time.perf_counter()
        indices = make(num_samples, len(first_s))
        next(indices)
        first_s.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    count = sum(1 for _ in islice(indices, NUM_INDICES))
    rate = count / (time.perf_counter() - begin)
    peak_mb = float(status_kb("VmHWM") * 1024 / 1e6)
    return {"first_ms": median(first_s) * 1e3, "rate_per_s": rate, "memory_mb": peak_mb - before_mb}


def resident_mb() -> float:
    """The resident set of this process now."""
    return status_kb("VmRSS") * 1024 / 1e6


def status_kb(name: str) -> int:
    """A line of /proc/self/status; VmHWM is the peak of VmRSS (proc(5))."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(f"{name}:"))


def measure_apart(order: str, num_samples: int) -> dict[str, Any]:
    """Measures in a process of its own."""
    child = spawn(command(sys.executable, __file__, "--one", order, str(num_samples)))
    out, error = child.communicate()
    if child.returncode != 0:
        sys.exit(f"{order} over {num_samples} samples ended with {child.returncode}: {error.decode()}")
    return {"order": order, "samples": num_samples, **json.loads(out)}


def print_table(rows: list[dict[str, Any]]) -> None:
    """Prints one line per size and order."""
    print(f"{'samples':>8}  {'order':<18}  {'first':>12}  {'rate':>14}  {'memory':>9}")
    for row in rows:
        print(
            f"{row['samples']:>8.0e}  {row['order']:<18}  {row['first_ms']:>9.3f} ms  "
            f"{row['rate_per_s'] / 1e6:>8.2f} M/s     {row['memory_mb']:>6.1f} MB"
        )


def main() -> int:
    """Measures all sizes and prints them; 1 if Partition exceeds a limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--largest-sampler", type=float, default=1e8, help="most samples for DistributedSampler (1e8: 5 GB)"
    )
    parser.add_argument("--one", nargs=2, metavar=("ORDER", "SAMPLES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]))))
        return 0
    sizes = [10**power for power in range(6, 13)]
    rows = [measure_apart("Partition", size) for size in sizes]
    rows += [measure_apart("DistributedSampler", size) for size in sizes if size <= options.largest_sampler]
    ours = [row for row in rows if row["order"] == "Partition"]
    ok = all(row["first_ms"] <= LIMIT_FIRST_MS and row["memory_mb"] <= LIMIT_MEMORY_MB for row in ours)
    if options.json:
        print(json.dumps({"schema": 1, "cpus": os.cpu_count(), "rows": rows, "ok": ok}))
    else:
        print_table(rows)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())

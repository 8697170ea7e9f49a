"""How long training stands still for a checkpoint: ``python benchmarks/checkpoint.py [--mb N] [--json]``.

A state of N MB (a model and an Adam optimizer's two moments) is saved in turn by ``Keeper``, which copies
and writes in the background, and by a blocking ``torch.save`` with fsync to the same disk. The figure is the
median over the rounds of the ratio of the two stalls; the first, in which the copy's memory is made, is told
apart.
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

import torch

from hvdtrain.backends.single import SingleBackend
from hvdtrain.config import CheckpointConfig
from hvdtrain.topology.environ import World
from hvdtrain.train.keeper import Keeper
from hvdtrain.train.schedule import Position

LIMIT = 0.1


def make_state(megabytes: int) -> dict[str, object]:
    """Tensors of 4 MB, a third of them the model's."""
    each = 1_000_000
    count = max(1, megabytes // 12)
    model = {f"layer{number}.weight": torch.randn(each) for number in range(count)}
    moments = {
        number: {"exp_avg": torch.randn(each), "exp_avg_sq": torch.rand(each), "step": torch.tensor(1.0)}
        for number in range(count)
    }
    return {"model": model, "optimizer": {"state": moments, "param_groups": []}}


def blocking_s(state: dict[str, object], path: Path) -> float:
    """Seconds that a plain save takes until it is on the disk."""
    began_s = time.perf_counter()
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - began_s


def main() -> int:
    """Measures and prints; 1 where the limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mb", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, help="where to write; a temporary folder if not given")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    state = make_state(options.mb)
    stalls, plain = [], []
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        keeper = Keeper(
            SingleBackend(World(), torch.device("cpu")),
            CheckpointConfig(keep_last=1),
            Path(folder, "ours"),
            print,
        )
        for number in range(options.rounds + 1):
            began_s = time.perf_counter()
            keeper.save(Position(number + 1), lambda: state, {})
            stalls.append(time.perf_counter() - began_s)
            keeper.close()  # the two must not write at once
            plain.append(blocking_s(state, Path(folder, "plain.pt")))
    ratio = median(ours / theirs for ours, theirs in zip(stalls[1:], plain[1:], strict=True))
    figures = {
        "schema": 1,
        "mb": options.mb,
        "stall_s": round(median(stalls[1:]), 4),
        "first_stall_s": round(stalls[0], 4),
        "torch_save_s": round(median(plain[1:]), 4),
        "ratio": round(ratio, 4),
        "limit": LIMIT,
    }
    print(
        json.dumps(figures)
        if options.json
        else "\n".join(f"{key:<14} {value}" for key, value in figures.items())
    )
    if ratio > LIMIT:
        print(f"stall over torch.save: {ratio:.3f}, more than {LIMIT}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

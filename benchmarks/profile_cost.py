"""What the profile that every training keeps costs a step: ``python benchmarks/profile_cost.py [--json]``.

Two ranks on this machine, started with the launcher's defaults. The Trainer with the profile and without it
take their steps in turn inside the same processes, in blocks; the ratio of a round is the time of one block
over the other's of the same round, and the figure is the median over the rounds. What disturbs the machine
disturbs both. There are ``--copies`` of each, and the rounds go through their pairs, because a copy of the
very same loop is up to 3 % faster or slower by where its memory lies. Sampled steps, the ranks' sums and rank
0's bookkeeping are in it as in a training; the file, which is written once a minute, is not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # the ranks are started with -P
from step import EVENT_MARK, MODELS, build

LIMIT = 1.01  # what docs/profile.md holds the ratio to
_PER_RANK = 16
_METRICS_EVERY = 25  # the job file's default


class Pairs:
    """One rank's trainers over the same batches, copies of each kind."""

    def __init__(self, model: str, num_batches: int, copies: int) -> None:
        import torch

        from hvdtrain.backends.start import start_backend
        from hvdtrain.data.batch import Batch
        from hvdtrain.topology.environ import find_world

        world = find_world(os.environ)
        self.rank, self.backend = world.rank, start_backend("horovod", world)
        _, shape, classes = build(model)
        torch.manual_seed(1 + world.rank)
        total = _PER_RANK * world.size
        self.batches = [
            Batch(
                torch.randn(_PER_RANK, *shape),
                torch.randint(classes, (_PER_RANK,)),
                _PER_RANK,
                total,
                (number + 1) * total,
            )
            for number in range(num_batches)
        ]
        self.runs: dict[str, list[Callable[[], None]]] = {"plain": [], "profiled": []}
        for copy in range(copies):
            for name in list(self.runs)[:: 1 - 2 * (copy % 2)]:
                self.runs[name].append(self._trainer(model, name, copy))

    def block_s(self, name: str, copy: int) -> float:
        """Seconds that one pass over the batches takes, all ranks starting together."""
        self.backend.gather(None)
        begin = time.perf_counter()
        self.runs[name][copy]()
        return time.perf_counter() - begin

    def _trainer(self, model: str, name: str, copy: int) -> Callable[[], None]:
        import torch

        from hvdtrain.backends.base import Reduction
        from hvdtrain.train.evaluation import Evaluation
        from hvdtrain.train.observe import Length
        from hvdtrain.train.parts import Parts
        from hvdtrain.train.step import Stepper, StepRules
        from hvdtrain.train.trainer import Trainer

        torch.manual_seed(0)
        module, shape, _ = build(model)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.001, momentum=0.9)
        replica = self.backend.distribute(module, optimizer, Reduction(prefix=f"{name}{copy}."))
        parts = Parts(
            backend=self.backend,
            stepper=Stepper(self.backend, replica, StepRules()),
            train=None,  # type: ignore[arg-type]  # batches come from memory
            validation=None,  # type: ignore[arg-type]
            rate=lambda _step: 0.001,
            length=Length(1, 1 << 60, 1 << 60),
            metrics_every_steps=_METRICS_EVERY,
            sample=torch.zeros(shape),
            may_skip=False,
            precision="fp32",
            evaluation=Evaluation(()),
            observer=None,
        )
        # As in a job, where ranks ask each other about signals and failed saves in every step.
        parts.stepper.ask = (_no, _no)
        trainer = Trainer(self._profiled(parts) if name == "profiled" else parts)
        return lambda: trainer.run_steps(self.batches, 0)

    def _profiled(self, parts: Any) -> Any:
        from hvdtrain.measure.noise_scale import NoiseRecord
        from hvdtrain.measure.profile_pace import Pace, rows_for
        from hvdtrain.measure.profile_run import Outlet, RunProfile
        from hvdtrain.train.profiling import SAMPLE_EVERY, RunningProfile, record_steps
        from hvdtrain.train.stall import Unwatched

        backend = self.backend
        recorder = record_steps(parts.stepper, backend, rows_for(backend.size), SAMPLE_EVERY)
        recorder.listener = Unwatched()
        recorder.norms.batch = float(_PER_RANK * backend.size)
        noise = NoiseRecord(_PER_RANK, _PER_RANK * backend.size)
        outlet = Outlet(lambda _table, _noise: None, lambda _text: None, lambda _name, _value: None)
        book = RunProfile(tuple("h" for _ in range(backend.size)), noise, outlet)
        profile = RunningProfile(recorder, Pace(backend, recorder, book.hear), book)
        return replace(parts, progress=recorder, recorder=profile, profile=profile)


def _no() -> bool:
    return False


def run_rank(model: str, options: argparse.Namespace) -> None:
    """The program of one rank: a warm-up, then the rounds; rank 0 tells the times."""
    copies = options.copies
    pairs = Pairs(model, options.steps, copies)
    for name in pairs.runs:
        for copy in range(copies):
            pairs.block_s(name, copy)
    times: dict[str, list[float]] = {name: [] for name in pairs.runs}
    order = random.Random(0)  # the same on all ranks
    for number in range(options.rounds):
        picked = {"plain": number % copies, "profiled": number // copies % copies}
        for name in order.sample(list(pairs.runs), len(pairs.runs)):
            times[name].append(pairs.block_s(name, picked[name]) / options.steps)
    if pairs.rank == 0:
        sys.stdout.write(f"{EVENT_MARK}{json.dumps(times)}\n")
        sys.stdout.flush()
    pairs.backend.close()


def launch(model: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Starts two ranks with the launcher's defaults and returns seconds per step of each round."""
    from hvdtrain.launch.job import launch_job
    from hvdtrain.launch.machine import local_plan
    from hvdtrain.launch.supervise import failure_text

    words = [f"--{name}={getattr(options, name)}" for name in ("rounds", "steps", "copies")]
    script = (sys.executable, "-P", str(Path(__file__).resolve()), "--rank", model, *words)
    plan = replace(local_plan(2, max(2, os.cpu_count() or 2), os.environ), program=script)
    told: list[dict[str, list[float]]] = []
    outcome = launch_job(plan, lambda _: None, lambda _, event: told.append(event))
    if outcome.exit_code or not told:
        sys.exit(failure_text(outcome))
    return told[0]


def measure(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """The ratio for one model."""
    times = launch(model, options)
    ratios = [a / b for a, b in zip(times["profiled"], times["plain"], strict=True)]
    low, _, high = quantiles(ratios, n=4)
    return {
        "model": model,
        "ratio": round(median(ratios), 4),
        "quartiles": [round(low, 4), round(high, 4)],
        "profiled_ms": round(1e3 * median(times["profiled"]), 3),
        "plain_ms": round(1e3 * median(times["plain"]), 3),
        "limit": LIMIT,
    }


def main() -> None:
    """Measures and prints, or is one rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rank", metavar="MODEL", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=153)
    parser.add_argument("--steps", type=int, default=50, help="steps of a block: one of them is sampled")
    parser.add_argument("--copies", type=int, default=3, help="of each, side by side in a process")
    parser.add_argument("--model", choices=MODELS, action="append", help="default: all")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.rank:
        run_rank(options.rank, options)
        return
    rows = [measure(model, options) for model in options.model or MODELS]
    if options.json:
        print(json.dumps({"schema": 1, "rows": rows}))
        return
    print(f"{'model':<14}{'ratio':>8}{'quartiles':>18}{'limit':>8}{'with ms':>10}{'without ms':>12}")
    for row in rows:
        quartiles = "{:.3f} to {:.3f}".format(*row["quartiles"])
        print(
            f"{row['model']:<14}{row['ratio']:>8.3f}{quartiles:>18}{row['limit']:>8.2f}"
            f"{row['profiled_ms']:>10.2f}{row['plain_ms']:>12.2f}"
        )


if __name__ == "__main__":
    main()

"""A training step of ours beside a bare Horovod loop and torch DDP: ``python benchmarks/step.py [--json]``.

Two ranks on this machine, started with the launcher's defaults. Each model is timed twice:

- together: all three in turn inside the same processes, in blocks of steps; the ratio of a round is
  the time of one block over another's of the same round, and the figure is the median over the rounds.
  What disturbs the machine disturbs all three alike. Where a model's memory happens to lie makes a copy of
  a loop up to 3 % faster or slower than another of the same loop, so there are ``--copies`` of each, and
  the rounds go through their pairs.
- apart: each alone in a launch of its own, again in turn; the figure is the ratio of the medians.
  DDP is not slowed by Horovod's background thread there.

``ours`` is the Trainer with its metrics, ``bare`` a loop around Horovod's DistributedOptimizer written by
hand, ``ddp`` the same loop around DistributedDataParallel over gloo. All read the same batches from memory.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

EVENT_MARK = "\x1ehvdtrain "
VARIANTS = ("ours", "bare", "ddp")
MODELS = ("convolutions", "sixty_layers")
# What docs/performance.md holds the ratios to.
LIMITS = {
    ("convolutions", "ours/bare"): 1.02,
    ("sixty_layers", "ours/bare"): 1.02,
    ("convolutions", "ours/ddp"): 1.00,
    ("sixty_layers", "ours/ddp"): 1.05,
}


def build(name: str) -> tuple[Any, tuple[int, ...], int]:
    """A model, the shape of its input and its number of classes."""
    from torch import nn

    if name == "convolutions":
        layers = [nn.Conv2d(3, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU()]
        layers += [nn.Conv2d(128, 256, 3, 2, 1), nn.ReLU(), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(4096, 1130), nn.ReLU(), nn.Linear(1130, 10)), (3, 32, 32), 10
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(60))), (64,), 64


def _constant_rate(step: int) -> float:  # noqa: ARG001 - the same in every step
    return 0.001


def _no() -> bool:
    return False


class Contest:
    """One rank's contestants over the same batches."""

    def __init__(self, model: str, variants: tuple[str, ...], num_batches: int, copies: int) -> None:
        import torch

        from hvdtrain.backends.start import start_backend
        from hvdtrain.data.batch import Batch
        from hvdtrain.topology.environ import find_world

        world = find_world(os.environ)
        self.rank = world.rank
        torch.manual_seed(0)
        _, shape, classes = build(model)
        torch.manual_seed(1 + world.rank)
        per_rank = 16
        self.batches = [
            Batch(
                torch.randn(per_rank, *shape),
                torch.randint(classes, (per_rank,)),
                per_rank,
                per_rank * world.size,
                (number + 1) * per_rank * world.size,
            )
            for number in range(num_batches)
        ]
        engines = {"ours": "horovod", "bare": "horovod", "ddp": "ddp"}
        self.backends = {
            name: start_backend(name, world) for name in dict.fromkeys(engines[v] for v in variants)
        }
        makers = {"ours": self._ours, "bare": self._bare, "ddp": self._ddp}
        self.runs: dict[str, list[Callable[[], None]]] = {variant: [] for variant in variants}
        for copy in range(copies):
            for variant in _turned(variants, copy):
                self.runs[variant].append(makers[variant](model, shape, copy))

    def block_s(self, variant: str, copy: int) -> float:
        """Seconds that one pass over the batches takes, all ranks starting together."""
        next(iter(self.backends.values())).gather(None)
        begin = time.perf_counter()
        self.runs[variant][copy]()
        return time.perf_counter() - begin

    def _ours(self, name: str, shape: tuple[int, ...], _: int) -> Callable[[], None]:
        import torch

        from hvdtrain.train.evaluation import Evaluation
        from hvdtrain.train.observe import Length
        from hvdtrain.train.parts import Parts
        from hvdtrain.train.step import Stepper, StepRules
        from hvdtrain.train.trainer import Trainer

        model, backend = build(name)[0], self.backends["horovod"]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
        parts = Parts(
            backend=backend,
            stepper=Stepper(backend, backend.distribute(model, optimizer), StepRules()),
            train=None,  # type: ignore[arg-type]  # batches come from memory
            validation=None,  # type: ignore[arg-type]
            rate=_constant_rate,
            length=Length(1, 1 << 60, 1 << 60),
            metrics_every_steps=25,
            sample=torch.zeros(shape),
            may_skip=False,
            precision="fp32",
            evaluation=Evaluation(()),
            observer=None,
        )
        # As in a job, where ranks ask each other about signals and failed saves in every step.
        parts.stepper.ask = (_no, _no)
        trainer = Trainer(parts)
        return lambda: trainer.run_steps(self.batches, 0)

    def _bare(self, name: str, _: tuple[int, ...], copy: int) -> Callable[[], None]:
        import horovod.torch as hvd
        import torch

        model = build(name)[0]
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        inner = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
        # Names of its own: the contestants' tensors must not be taken for each other.
        names = [(f"bare{copy}.{key}", value) for key, value in model.named_parameters()]
        optimizer = hvd.DistributedOptimizer(inner, named_parameters=names)
        return lambda: self._loop(model, optimizer)

    def _ddp(self, name: str, _: tuple[int, ...], __: int) -> Callable[[], None]:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        model = DistributedDataParallel(build(name)[0])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
        return lambda: self._loop(model, optimizer)

    def _loop(self, model: Any, optimizer: Any) -> None:
        from torch.nn.functional import cross_entropy

        for batch in self.batches:
            optimizer.zero_grad()
            cross_entropy(model(batch.inputs), batch.targets).backward()
            optimizer.step()


def _turned(variants: tuple[str, ...], number: int) -> tuple[str, ...]:
    """Another order for each number: nobody always runs after the same neighbour."""
    turn = number % len(variants)
    return variants[turn:] + variants[:turn]


def run_rank(model: str, variants: tuple[str, ...], options: argparse.Namespace) -> None:
    """The program of one rank: a warm-up, then the rounds; rank 0 tells the times."""
    copies = options.copies
    contest = Contest(model, variants, options.steps, copies)
    for copy in range(copies):
        for variant in variants:
            contest.block_s(variant, copy)
    times: dict[str, list[float]] = {variant: [] for variant in variants}
    for number in range(options.rounds):
        # The first variant's copies meet all of the others'.
        picked = {name: (number // copies if at else number) % copies for at, name in enumerate(variants)}
        for variant in _turned(variants, number):
            times[variant].append(contest.block_s(variant, picked[variant]) / options.steps)
    if contest.rank == 0:
        sys.stdout.write(f"{EVENT_MARK}{json.dumps(times)}\n")
        sys.stdout.flush()
    for backend in contest.backends.values():
        backend.close()


def launch(model: str, variants: tuple[str, ...], options: argparse.Namespace) -> dict[str, list[float]]:
    """Starts two ranks with the launcher's defaults and returns seconds per step of each round."""
    from hvdtrain.launch.job import launch_job
    from hvdtrain.launch.machine import local_plan
    from hvdtrain.launch.supervise import failure_text

    script = (sys.executable, "-P", str(Path(__file__).resolve()), "--rank", model, ",".join(variants))
    words = [f"--{name}={getattr(options, name)}" for name in ("rounds", "steps", "copies")]
    plan = replace(local_plan(2, max(2, os.cpu_count() or 2), os.environ), program=(*script, *words))
    told: list[dict[str, list[float]]] = []
    outcome = launch_job(plan, lambda _: None, lambda _, event: told.append(event))
    if outcome.exit_code or not told:
        sys.exit(failure_text(outcome))
    return told[0]


def measure(model: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Both ways of timing one model, a row for each ratio."""
    together = launch(model, VARIANTS, options)
    apart: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for _ in range(options.repeats):
        for variant in VARIANTS:
            apart[variant].append(median(launch(model, (variant,), options)[variant]))
    rows = []
    for name in ("ours/bare", "ours/ddp"):
        ours, other = name.split("/")
        rounds = zip(together[ours], together[other], strict=True)
        rows.append(
            {
                "model": model,
                "ratio": name,
                "together": round(median(a / b for a, b in rounds), 3),
                "apart": round(median(apart[ours]) / median(apart[other]), 3) if options.repeats else None,
                "ours_ms": round(1e3 * median(together[ours]), 2),
                "other_ms": round(1e3 * median(together[other]), 2),
                "limit": LIMITS[(model, name)],
            }
        )
    return rows


def main() -> None:
    """Measures and prints, or is one rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rank", nargs=2, metavar=("MODEL", "VARIANTS"), help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=63)
    parser.add_argument(
        "--steps", type=int, default=10, help="steps of a block: short, so that what disturbs hits all alike"
    )
    parser.add_argument("--copies", type=int, default=3, help="of each, side by side in a process")
    parser.add_argument("--repeats", type=int, default=5, help="separate launches of each; 0: none")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.rank:
        run_rank(options.rank[0], tuple(options.rank[1].split(",")), options)
        return
    rows = [row for model in MODELS for row in measure(model, options)]
    if options.json:
        print(json.dumps({"schema": 1, "rows": rows}))
        return
    print(f"{'model':<14}{'ratio':<12}{'together':>9}{'apart':>9}{'limit':>8}{'ours ms':>10}{'other ms':>10}")
    for row in rows:
        print(
            f"{row['model']:<14}{row['ratio']:<12}{row['together']:>9.3f}{row['apart'] or '-':>9}"
            f"{row['limit']:>8.2f}{row['ours_ms']:>10.2f}{row['other_ms']:>10.2f}"
        )


if __name__ == "__main__":
    main()

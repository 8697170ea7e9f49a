"""Reads what ``train.recorder`` wrote: small facts at once, tensors one by one when they are asked for."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from hvdtrain.tools.verify.request import Run
from hvdtrain.train.recorder import RECORD_FACTS, RankShare, step_path

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class StepFacts:
    """The small facts of a step.

    Attributes:
        loss: Mean over the samples of all ranks.
        lr: Learning rate of each parameter group, after the step.
        skipped: Why the step was left out; empty where it was not.
        ranks: What each rank did.
        state: 2-norms of the optimizer's tensors by kind, in the trained parameters' order.
    """

    loss: float
    lr: tuple[float, ...]
    skipped: str
    ranks: tuple[RankShare, ...]
    state: dict[str, list[float]]

    @property
    def counts(self) -> list[int]:
        """Samples of each rank."""
        return [share.count for share in self.ranks]


@dataclass(frozen=True)
class Record:
    """The record of one run.

    Attributes:
        run: Which run.
        folder: Where it lies.
    """

    run: Run
    folder: Path
    _steps: dict[int, StepFacts] = field(default_factory=dict)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What holds for the whole run."""
        facts: dict[str, Any] = json.loads((self.folder / RECORD_FACTS).read_text("utf-8"))
        return facts

    @property
    def num_steps(self) -> int:
        """Steps that were taken."""
        return int(self.facts["steps"])

    @property
    def parameters(self) -> list[str]:
        """Names of the trained parameters."""
        return list(self.facts["parameters"])

    def step(self, number: int) -> StepFacts:
        """The facts of a step, from 1."""
        if number not in self._steps:
            told = json.loads(step_path(self.folder, number, "facts").read_text("utf-8"))
            ranks = tuple(RankShare(**share) for share in told["ranks"])
            facts = StepFacts(told["loss"], tuple(told["lr"]), told["skipped"], ranks, told["state"])
            self._steps[number] = facts
        return self._steps[number]

    def tensors(self, step: int, what: str) -> Tensors | None:
        """Tensors of a step, mapped from their file and not read yet; None where there are none."""
        path = step_path(self.folder, step, what)
        if not path.exists():
            return None
        loaded: Tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        return loaded

    def gradients(self, step: int, what: str = "reduced") -> Tensors | None:
        """Gradients after the reduction, or as ``clipped``; None for a step that was left out."""
        found = self.tensors(step, what)
        return self.tensors(step, "reduced") if found is None else found

"""Sums and counts: what ranks add up before anything is divided.

A mean of means is wrong as soon as two ranks hold different numbers of samples, so only sums
cross ranks. What is no sum stands in ``auroc.py`` and ``torchmetrics_states.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch.nn import functional

from hvdtrain.backends.base import Backend
from hvdtrain.errors import InputError, TrainingError

# A number, or what a JSON document holds: None where a class has none, lists of them per class.
Value = float | list[Any]


class Tally:
    """Sums of a loss and of right answers over samples, and the number of samples.

    What is added stays on the device and is summed up only when somebody asks: a step neither
    waits for the device nor pays for arithmetic on scalars.
    """

    def __init__(self) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64)
        self._losses: list[torch.Tensor] = []
        self._right: list[torch.Tensor] = []
        self._counts: list[int] = []

    def add(self, loss: torch.Tensor, num_right: torch.Tensor, count: int) -> None:
        """Adds one batch: its mean loss, number of right answers, number of samples."""
        self._losses.append(loss.detach())
        self._right.append(num_right)
        self._counts.append(count)

    def merge(self, other: Tally) -> None:
        """Adds what another tally of this rank holds."""
        self._sums += other._collected()

    def values(self) -> list[float]:
        """This rank's sums, as ``of`` takes them."""
        return [float(value) for value in self._collected().tolist()]

    @classmethod
    def of(cls, values: list[float]) -> Tally:
        """A tally that holds what another one's ``values`` were."""
        tally = cls()
        tally._sums = torch.tensor(values, dtype=torch.float64)
        return tally

    def reduced(self, backend: Backend, name: str) -> Means:
        """The means over the samples of all ranks; collective."""
        return Means.of(backend.sum(self._collected(), name).tolist())

    def _collected(self) -> torch.Tensor:
        """Summed loss, right answers and samples, in double precision on the CPU."""
        if self._counts:
            counts = torch.tensor(self._counts, dtype=torch.float64)
            losses = torch.stack(self._losses).to("cpu", torch.float64)
            right = torch.stack(self._right).to("cpu", torch.float64)
            self._sums += torch.stack([(losses * counts).sum(), right.sum(), counts.sum()])
            self._losses, self._right, self._counts = [], [], []
        return self._sums


class Means:
    """Mean loss and accuracy over a known number of samples; NaN over none.

    Attributes:
        loss: Mean loss per sample.
        accuracy: Right answers over samples, 0 to 1.
        count: Number of samples.
    """

    def __init__(self, loss: float, accuracy: float, count: int) -> None:
        self.loss, self.accuracy, self.count = loss, accuracy, count

    @classmethod
    def of(cls, sums: list[float]) -> Means:
        """From summed loss, right answers and samples."""
        loss_sum, num_right, count = sums
        if count == 0:
            return cls(float("nan"), float("nan"), 0)
        return cls(loss_sum / count, num_right / count, round(count))


def classification(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy and right answers of a batch.

    Args:
        outputs: Scores, shape (N, classes).
        targets: Class indices, shape (N,), int64.

    Returns:
        The mean loss over the N samples, a scalar with a gradient, and the number of samples
        whose largest score is at the target.
    """
    loss = functional.cross_entropy(outputs, targets)
    return loss, (outputs.detach().argmax(dim=1) == targets).sum()


class Metric(Protocol):
    """A figure over the samples of all ranks. ``reset`` and ``update`` are this rank's alone."""

    def reset(self) -> None:
        """Begins anew."""

    def update(
        self, outputs: torch.Tensor, targets: torch.Tensor, counted: torch.Tensor | None = None
    ) -> None:
        """Adds a batch of this rank's samples.

        Args:
            outputs: Scores of the classes (logits), shape (N, classes).
            targets: Class indices, shape (N,).
            counted: Which of the samples count, bool, shape (N,); None for all of them.
        """

    def reduced(self, backend: Backend) -> dict[str, Value]:
        """The figures over all ranks' samples, by name; collective, also for a rank that has none.

        The metric itself stays as it was. Over no samples at all a figure is NaN.
        """


class ClassMetric(ABC):
    """Base of the metrics of a classifier; they are computed on the CPU.

    Args:
        num_classes: Columns of the outputs, at least 2.

    Raises:
        InputError: Fewer than 2 classes.
    """

    def __init__(self, num_classes: int) -> None:
        if num_classes < 2:
            raise InputError(f"a metric of {num_classes} classes", legal="2 or more")
        self.num_classes = num_classes
        self.reset()

    def update(
        self, outputs: torch.Tensor, targets: torch.Tensor, counted: torch.Tensor | None = None
    ) -> None:
        """Adds a batch of this rank's samples; see ``Metric.update``.

        Raises:
            TrainingError: A shape does not fit, or a target is no class.
        """
        outputs, targets = outputs.detach().to("cpu"), targets.detach().to("cpu")
        fits = outputs.ndim == 2 and outputs.shape[1] == self.num_classes
        if not fits or targets.shape != outputs.shape[:1]:
            raise TrainingError(
                f"metrics need outputs of shape (N, {self.num_classes}) and targets of shape (N,), "
                f"found {tuple(outputs.shape)} and {tuple(targets.shape)}"
            )
        if counted is not None:
            kept = counted.to("cpu", torch.bool)
            outputs, targets = outputs[kept], targets[kept]
        if not len(targets):
            return
        wrong = targets[(targets < 0) | (targets >= self.num_classes)]
        if len(wrong):
            raise TrainingError(f"target {wrong[0]} is no class: legal are 0 to {self.num_classes - 1}")
        self._add(outputs, targets)

    @abstractmethod
    def reset(self) -> None:
        """Begins anew."""

    @abstractmethod
    def reduced(self, backend: Backend) -> dict[str, Value]:
        """The figures over all ranks' samples; see ``Metric.reduced``."""

    @abstractmethod
    def _add(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Adds at least one sample, on the CPU and found legal."""


class TopAccuracy(ClassMetric):
    """Share of the samples whose target is among the k largest scores.

    Of equal scores the class with the lower index comes first, as with ``argmax``: a model that
    gives all classes the same score is right as often as class 0 is the target. A sample with a NaN
    among its scores is wrong.

    Args:
        num_classes: Columns of the outputs.
        k: How many scores are looked at.
        name: In the results; ``accuracy`` for one score, ``topK`` for more.

    Raises:
        InputError: k is no number from 1 to ``num_classes``.
    """

    def __init__(self, num_classes: int, k: int = 1, name: str = "") -> None:
        if not 1 <= k <= num_classes:
            raise InputError(f"top{k} of {num_classes} classes", where="metrics", legal=f"1 to {num_classes}")
        self.k = k
        self.name = name or ("accuracy" if k == 1 else f"top{k}")
        super().__init__(num_classes)

    def reset(self) -> None:
        """Begins anew."""
        self._state = torch.zeros(2, dtype=torch.int64)

    def reduced(self, backend: Backend) -> dict[str, Value]:
        """The share, under ``name``."""
        num_right, count = backend.sum(self._state, f"metric.{self.name}").tolist()
        return {self.name: num_right / count if count else float("nan")}

    def _add(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        column = targets.to(torch.int64).unsqueeze(1)
        score = outputs.gather(1, column)
        earlier = torch.arange(self.num_classes) < column
        ahead = ((outputs > score) | ((outputs == score) & earlier)).sum(dim=1)
        right = (ahead < self.k) & ~outputs.isnan().any(dim=1)
        self._state += torch.tensor([int(right.sum()), len(targets)])


def scalars(values: Mapping[str, Value]) -> dict[str, float]:
    """Of the figures those that are one number each: what fits a line of metrics and a curve."""
    return {name: value for name, value in values.items() if isinstance(value, float)}

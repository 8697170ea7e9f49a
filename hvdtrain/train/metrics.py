"""Sums and counts: what ranks add up before anything is divided.

A mean of means is wrong as soon as two ranks hold different numbers of samples, so only sums
cross ranks.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from hvdtrain.backends.base import Backend


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

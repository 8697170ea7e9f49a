"""What the passes of a step hold: samples or tokens, on one rank and on all of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hvdtrain.backends.base import Backend


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank's pass contributes to a step.

    Attributes:
        weight: Samples (or tokens) that the rank's loss is the mean of; 0 where it has none.
        total: The sum of the weights of all ranks and all passes of the step; None where that is
            unknown until the ranks add up what they hold in this pass.
        number: This pass in the step, from 0.
        num_passes: Passes of the step, the same on all ranks.
    """

    weight: float
    total: float | None
    number: int = 0
    num_passes: int = 1

    @property
    def is_last(self) -> bool:
        """Whether the step ends with this pass."""
        return self.number == self.num_passes - 1


class Weights:
    """Adds up what the passes of a step hold on all ranks.

    Args:
        backend: How bytes move.
        name: Different for each model that is trained at once, the same on all ranks.
    """

    def __init__(self, backend: Backend, name: str) -> None:
        self._backend, self._name = backend, name
        self.total = 0.0

    def clear(self) -> None:
        """A step begins."""
        self.total = 0.0

    def add(self, share: Share) -> tuple[float, float]:
        """The sum before and with a pass; both the step's where that is known. Collective where not."""
        if share.total is not None:
            self.total = share.total
            return self.total, self.total
        before = self.total
        weights = torch.tensor([share.weight], dtype=torch.float64)
        self.total += float(self._backend.sum(weights, self._name).item())
        return before, self.total

"""One process: a real engine whose collectives have one member."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hvdtrain.backends.base import PLAIN, Backend, Reduction, Replica


class SingleBackend(Backend):
    """Training alone; every collective is the identity."""

    name = "single"

    def distribute(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        reduction: Reduction = PLAIN,  # noqa: ARG002 - nothing travels
    ) -> Replica:
        self.check_optimizer(model, optimizer)
        return Replica(model, optimizer, model)

    def sum(self, values: torch.Tensor, name: str) -> torch.Tensor:  # noqa: ARG002
        return values.clone()

    def broadcast(self, value: Any) -> Any:
        return value

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast_tensor(self, tensor: torch.Tensor, name: str) -> None:
        """Nobody else to give it to."""

    def agree_buffers(self, module: nn.Module) -> None:
        """Nothing to agree on."""

    def close(self) -> None:
        """Nothing to end."""

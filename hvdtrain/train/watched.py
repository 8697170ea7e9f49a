"""A backend whose calls are known to the watch on a script's ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hvdtrain.backends.base import PLAIN, Backend, Reduction, Replica
from hvdtrain.train.waiting import Waiting

# What a user calls the sums that feeds and progress lines make.
_CALLS = {
    "run.sum": "run.sum",
    "next": "run.progress for its next batch",
    "stream": "the loader of a stream for its next step",
    "progress": "run.progress at its end",
}


class WatchedBackend(Backend):
    """An engine that tells ``waiting`` when this rank is in a collective of it.

    A call that is part of another one, of ``run.step`` for example, goes by that one's name.
    """

    def __init__(self, engine: Backend, waiting: Waiting) -> None:
        super().__init__(engine.world, engine.device)
        self.name = engine.name
        self._engine, self._waiting = engine, waiting

    def distribute(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, reduction: Reduction = PLAIN
    ) -> Replica:
        """As the engine does it."""
        with self._waiting.call("run.distribute"):
            return self._engine.distribute(model, optimizer, reduction)

    def sum(self, values: torch.Tensor, name: str) -> torch.Tensor:
        """As the engine does it."""
        with self._waiting.call(_CALLS.get(name, "the model's forward pass")):
            return self._engine.sum(values, name)

    def start_sum(self, values: torch.Tensor, name: str) -> Callable[[], torch.Tensor]:
        """As the engine does it."""
        with self._waiting.call("run.step"):  # which alone begins sums
            return self._engine.start_sum(values, name)

    def broadcast(self, value: Any) -> Any:
        """As the engine does it."""
        with self._waiting.call("run.broadcast"):
            return self._engine.broadcast(value)

    def gather(self, value: Any) -> list[Any]:
        """As the engine does it."""
        with self._waiting.call("run.progress at its start"):
            return self._engine.gather(value)

    def broadcast_tensor(self, tensor: torch.Tensor, name: str) -> None:
        """As the engine does it."""
        with self._waiting.call("run.distribute"):
            self._engine.broadcast_tensor(tensor, name)

    def agree_buffers(self, module: nn.Module) -> None:
        """As the engine does it."""
        with self._waiting.call("the start of an evaluation"):
            self._engine.agree_buffers(module)

    def close(self) -> None:
        """Ends the engine."""
        self._engine.close()

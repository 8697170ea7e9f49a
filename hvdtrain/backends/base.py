"""What every engine offers: the collectives that training needs, and nothing else.

Every call is collective: all ranks make the same calls in the same order.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hvdtrain.topology.devices import device_index
from hvdtrain.topology.environ import World


@dataclass(frozen=True)
class Replica:
    """A model and its optimizer as the engine wants them driven.

    Attributes:
        model: What the forward pass of training calls.
        optimizer: What ``step`` and ``zero_grad`` are called on.
        module: The model itself, for evaluation and saving.
        needs_backward: Whether every rank must run a backward pass in every step, also one
            that holds no samples of it.
        fills_gradients: Whether the engine itself gives zeros to parameters that a step did not use.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    module: nn.Module
    needs_backward: bool = False
    fills_gradients: bool = False


class Backend(ABC):
    """One engine that is up. Ranks and sizes are Horovod's terms.

    Attributes:
        name: What a job file calls it.
        world: Which rank this is.
        device: Where this rank computes.
    """

    name: str

    def __init__(self, world: World, device: torch.device) -> None:
        self.world = world
        self.device = device

    @property
    def rank(self) -> int:
        """This process's number, 0 to size - 1."""
        return self.world.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.world.size

    @abstractmethod
    def distribute(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        compression: str = "none",
        some_unused: bool = False,
    ) -> Replica:
        """Makes all replicas equal to rank 0's and averages gradients from now on.

        Parameters, buffers and optimizer state come from rank 0. After a backward pass and
        ``Replica.optimizer.step()``, each gradient was the mean over the ranks.

        Args:
            model: Already on ``device``.
            optimizer: Over the model's parameters.
            compression: ``none`` or ``fp16``: the form in which gradients travel.
            some_unused: Whether a step may leave parameters without a gradient.
        """

    @abstractmethod
    def sum(self, values: torch.Tensor, name: str) -> torch.Tensor:
        """The element-wise sum over all ranks; ``values`` of any shape, equal on all ranks.

        Args:
            values: This rank's part; it is not changed.
            name: What is summed; every use of its own has a name of its own.
        """

    @abstractmethod
    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, any picklable object, on all ranks."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """The picklable values of all ranks, in their order, on all ranks."""

    @abstractmethod
    def agree_buffers(self, module: nn.Module) -> None:
        """Gives every rank rank 0's buffers (running statistics), in place."""

    def _agree_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Gives every rank rank 0's optimizer state and settings.

        Not Horovod's ``broadcast_optimizer_state``: it takes an empty step to make a fresh
        optimizer's state, which counts as Adam's first and decays the weights.
        """
        state = self.broadcast(optimizer.state_dict() if self.rank == 0 else None)
        # A fresh optimizer that is set as rank 0's has nothing to load.
        if self.rank != 0 and (
            state["state"] or state["param_groups"] != optimizer.state_dict()["param_groups"]
        ):
            optimizer.load_state_dict(state)

    @abstractmethod
    def close(self) -> None:
        """Ends the engine; no collective may follow."""


def choose_device(world: World) -> torch.device:
    """The accelerator that belongs to this rank, or the CPU where there is none.

    Raises:
        InputError: There are accelerators, but none for this local rank.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return torch.device("cuda", device_index(world, visible, torch.cuda.device_count()))

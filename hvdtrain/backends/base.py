"""What every engine offers: the collectives that training needs, and nothing else.

Every call is collective: all ranks make the same calls in the same order.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hvdtrain.backends.alike import described, first_difference
from hvdtrain.backends.hearing import hear_whole_gradients
from hvdtrain.backends.meeting import check_met
from hvdtrain.backends.tensors import put_together, taken_apart
from hvdtrain.errors import InputError
from hvdtrain.topology.devices import device_index
from hvdtrain.topology.environ import World


@dataclass(frozen=True)
class Reduction:
    """How the gradients of one model cross ranks.

    Attributes:
        compression: ``none``, ``fp16`` or ``bf16``: the form in which they travel.
        kind: ``mean`` over the ranks, or Horovod's ``adasum``.
        some_unused: Whether a step may leave parameters without a gradient.
        prefix: Put before the parameters' names, which must differ between two models that an
            engine carries at once.
    """

    compression: str = "none"
    kind: str = "mean"
    some_unused: bool = False
    prefix: str = ""


PLAIN = Reduction()


class Replica:
    """A model and its optimizer as the engine wants them driven; this one is a process alone.

    A step is one or more passes, each begun by ``begin_pass`` before its forward pass, then
    ``finish``, then ``apply``, unless the step is left out. Every rank calls them in the same order.

    Attributes:
        model: What the forward pass of training calls.
        optimizer: Whose settings and state are the optimizer's; ``zero_grad`` may be called on it.
        module: The model itself, for evaluation and saving.
        needs_backward: Whether every rank must run a backward pass in every step, also one
            that holds no samples of it.
        has_gradients: Whether ``finish`` leaves reduced gradients, which may then be changed.
    """

    needs_backward = False
    has_gradients = True

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
        self.model, self.optimizer, self.module = model, optimizer, module
        self.trained = [value for value in parameters_of(optimizer) if value.requires_grad]
        self._sparse = sparse_parameters(module)

    def begin_pass(self, is_first: bool, is_last: bool, num_passes: int) -> None:
        """A forward and a backward pass begin.

        Args:
            is_first: The step begins with this pass.
            is_last: Its gradients cross ranks during this pass; those of earlier ones stay here.
            num_passes: Passes of the whole step, the same on all ranks.
        """

    def check_trained(self) -> None:
        """Refuses parameters that were frozen, unfrozen or added since: nothing would reduce them rightly.

        Raises:
            InputError: With their numbers.
        """
        now = [value for value in parameters_of(self.optimizer) if value.requires_grad]
        if len(now) != len(self.trained) or any(a is not b for a, b in zip(now, self.trained, strict=True)):
            raise InputError(
                f"the optimizer trains {len(now)} parameters, and {len(self.trained)} or others when it was "
                "distributed",
                do="freeze, unfreeze and add parameters before it is distributed",
            )

    def finish(self) -> None:
        """Waits for the reduction: after it every gradient is the mean over the ranks.

        A parameter that the step did not use has gradient zero, whatever the engine: Horovod reduces
        zeros for it, so momentum and weight decay act. Elsewhere it would have no gradient at all and
        stay as it is, and N ranks would not train like one.
        """
        self._fill_gradients()

    def hear_gradients(self, heard: Callable[[torch.Tensor], None]) -> Callable[[], None]:
        """Lets somebody look at each parameter's gradient when it is whole and not reduced yet.

        Args:
            heard: Called with the parameter, in the order in which gradients are ready.

        Returns:
            What ends it.
        """
        return hear_whole_gradients(self.trained, heard)

    def apply(self) -> None:
        """The optimizer's own step, on gradients that ``finish`` left."""
        self.optimizer.step()

    def _fill_gradients(self) -> None:
        for parameter in self.trained:
            if parameter.grad is None:
                parameter.grad = self._zero_gradient(parameter)

    def _zero_gradient(self, parameter: torch.Tensor) -> torch.Tensor:
        """No row at all for a sparse embedding, zeros elsewhere."""
        if parameter not in self._sparse:
            return torch.zeros_like(parameter)
        rows = torch.zeros(1, 0, dtype=torch.int64, device=parameter.device)
        values = torch.zeros(0, *parameter.shape[1:], dtype=parameter.dtype, device=parameter.device)
        return torch.sparse_coo_tensor(rows, values, parameter.shape, check_invariants=False)


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """What an optimizer steps, in its order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def sparse_parameters(module: nn.Module) -> set[torch.Tensor]:
    """The weights whose gradients are sparse: of embeddings that were made with ``sparse=True``."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    return {part.weight for part in module.modules() if isinstance(part, kinds) and part.sparse}


class Backend(ABC):
    """One engine that is up. Ranks and sizes are Horovod's terms.

    Attributes:
        name: What a job file calls it.
        world: Which rank this is.
        device: Where this rank computes.
        tells_apart: Whether collectives go by their names: one never answers another.
    """

    name: str
    tells_apart = True

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
        self, model: nn.Module, optimizer: torch.optim.Optimizer, reduction: Reduction = PLAIN
    ) -> Replica:
        """Makes all replicas equal to rank 0's and averages gradients from now on.

        Parameters, buffers and optimizer state come from rank 0.

        Args:
            model: Already on ``device``.
            optimizer: Over the model's parameters.
            reduction: How gradients cross ranks.

        Raises:
            InputError: The engine cannot carry it, or ranks hold different parameters.
        """

    @abstractmethod
    def sum(self, values: torch.Tensor, name: str) -> torch.Tensor:
        """The element-wise sum over all ranks; ``values`` of any shape, equal on all ranks.

        Args:
            values: This rank's part; it is not changed.
            name: What is summed; every use of its own has a name of its own.
        """

    def start_sum(self, values: torch.Tensor, name: str) -> Callable[[], torch.Tensor]:
        """Begins what ``sum`` does; the call of what it returns waits for the result.

        Other collectives may begin and end in between, in the same order on all ranks.
        """
        total = self.sum(values, name)
        return lambda: total

    @abstractmethod
    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, any picklable object, on all ranks."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """The picklable values of all ranks, in their order, on all ranks."""

    def prepare_meeting(self) -> Callable[[str], None]:
        """Gives what waits for all ranks to call it, however long that takes; collective.

        It is called with the name of the place at which they meet. No other collective answers it, so that
        ranks in different calls never take each other's values; at different places it raises
        UnmatchedError.
        """
        return lambda place: check_met(self.gather(place))

    @abstractmethod
    def agree_buffers(self, module: nn.Module) -> None:
        """Gives every rank rank 0's buffers (running statistics), in place."""

    @staticmethod
    def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Refuses an optimizer whose gradients the engine would not, or not rightly, reduce."""
        if isinstance(optimizer, torch.optim.LBFGS):
            raise InputError(
                "LBFGS cannot train data-parallel: it evaluates the loss several times inside one step, "
                "after the gradients were reduced",
                do="use another optimizer, such as SGD, Adam or LAMB",
            )
        own = set(model.parameters())
        if strange := sum(parameter not in own for parameter in parameters_of(optimizer)):
            raise InputError(
                f"{strange} of the optimizer's parameters are not the model's",
                do="make the optimizer from the parameters of the model that you give with it",
            )

    def check_alike(self, model: nn.Module) -> None:
        """Refuses ranks whose models differ in a parameter's name, shape, type or place in the order.

        An optimizer's state is kept by that place; names alone do not bring it to the right parameter.
        """
        own = described(model)
        first = self.broadcast(own)
        differing = self.gather(None if own == first else first_difference(first, own))
        for rank, difference in enumerate(differing):
            if difference is not None:
                raise InputError(
                    f"the model of rank {rank} is not rank 0's: {difference}",
                    do="build the same model in the same order on all ranks",
                )

    def _agree_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Gives every rank rank 0's optimizer state and settings.

        Not Horovod's ``broadcast_optimizer_state``: it takes an empty step to make a fresh
        optimizer's state, which counts as Adam's first and decays the weights.
        """
        tensors: list[torch.Tensor] = []
        own = optimizer.state_dict()
        # The tensors one by one: Horovod takes no object of 2 GiB, and a pickled one of a GPU comes back
        # on rank 0's device.
        state = self.broadcast(taken_apart(own, tensors) if self.rank == 0 else None)
        state = put_together(state, self.device, tensors if self.rank == 0 else None, self.broadcast_tensor)
        # A fresh optimizer that is set as rank 0's has nothing to load.
        if self.rank != 0 and (
            state["state"] or own["state"] or state["param_groups"] != own["param_groups"]
        ):
            optimizer.load_state_dict(state)

    @abstractmethod
    def broadcast_tensor(self, tensor: torch.Tensor, name: str) -> None:
        """Puts rank 0's values into every rank's tensor of that shape and type."""

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

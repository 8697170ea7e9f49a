"""Takes a state apart into its tensors and what holds them, and puts it together on another rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class _Place:
    """Where a tensor stood."""

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_cuda: bool


def taken_apart(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The same value with places instead of tensors, which are appended to ``tensors``."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Place(len(tensors) - 1, tuple(value.shape), value.dtype, value.is_cuda)
    if isinstance(value, Mapping):
        return {key: taken_apart(inner, tensors) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(taken_apart(inner, tensors) for inner in value)
    return value


def put_together(
    value: Any,
    device: torch.device,
    tensors: list[torch.Tensor] | None,
    broadcast: Callable[[torch.Tensor, str], None],
) -> Any:
    """The value with its tensors in their places; collective.

    Args:
        value: What ``taken_apart`` gave on rank 0.
        device: Where this rank's GPU tensors are made.
        tensors: Rank 0's tensors there; None elsewhere, where they are made.
        broadcast: Gives a tensor rank 0's values, under a name.
    """
    if isinstance(value, _Place):
        if tensors is not None:
            tensor = tensors[value.number]
        else:
            where = device if value.is_cuda else torch.device("cpu")
            tensor = torch.empty(value.shape, dtype=value.dtype, device=where)
        broadcast(tensor, f"optimizer.{value.number}")
        return tensor
    if isinstance(value, Mapping):
        return {key: put_together(inner, device, tensors, broadcast) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(put_together(inner, device, tensors, broadcast) for inner in value)
    return value

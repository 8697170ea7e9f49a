"""Arithmetic on the gradients of several parameters, sparse ones among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def kept_out(parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """A backward pass inside adds zeros to the gradients, whatever it computes."""
    hooks = [parameter.register_hook(torch.zeros_like) for parameter in parameters]  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def total_norm(parameters: Iterable[torch.Tensor]) -> float:
    """The 2-norm of all gradients together, sparse ones included."""
    values = [_values(parameter.grad) for parameter in parameters if parameter.grad is not None]
    if not values:
        return 0.0
    return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(values))))


def _values(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def scale(parameters: Iterable[torch.Tensor], factor: float) -> None:
    """Multiplies all gradients by a factor."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


def clamp(parameters: Iterable[torch.Tensor], limit: float) -> None:
    """Brings each element of all gradients within -limit and limit."""
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.is_sparse:
            whole = gradient.coalesce()
            parameter.grad = torch.sparse_coo_tensor(
                whole.indices(), whole.values().clamp(-limit, limit), whole.shape, is_coalesced=True
            )
        else:
            gradient.clamp_(-limit, limit)

"""A shorter path from a gradient to Horovod's queue and back.

Horovod 0.28.1 (``horovod/torch/optimizer.py``, ``mpi_ops.py``) asks the same of every gradient in every step:
the name of its type, whether the library has a function of that name, whose build it is, how to compress what
is not compressed; and at the end it puts each gradient where it already is. With many small layers this costs
more than their reduction. Here it is asked once per parameter. The operations, their names and order stay
the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class _Call(NamedTuple):
    """What reduces the gradients of one parameter."""

    function: Callable[..., int]
    name: bytes
    dtype: torch.dtype


def shorten(optimizer: Any, ops: Any) -> None:
    """Gives a distributed optimizer the shorter path.

    Args:
        optimizer: Of ``hvd.DistributedOptimizer``, which makes a class of its own for each, reducing means
            without compression over all ranks.
        ops: The module ``horovod.torch.mpi_ops``.
    """
    calls = {
        id(parameter): _Call(_function_for(parameter, ops), name.encode(), parameter.dtype)
        for parameter, name in optimizer._parameter_names.items()
    }
    kind = type(optimizer)
    whole_path = kind._allreduce_grad_async

    def start(self: Any, parameter: torch.Tensor) -> tuple[int, Any]:
        gradient = parameter.grad
        call = calls.get(id(parameter))
        if call is None or not _is_plain(gradient, call.dtype):
            return whole_path(self, parameter)  # type: ignore[no-any-return]
        try:
            handle = call.function(gradient, gradient, 1, call.name, ops.Average, 1.0, 1.0, 0)
        except RuntimeError as error:
            raise ops.HorovodInternalError(error) from error
        ops._handle_map[handle] = (gradient, gradient)
        return handle, None

    def synchronize(self: Any) -> None:
        _synchronize(self, ops)

    kind._allreduce_grad_async, kind.synchronize = start, synchronize


def _function_for(parameter: torch.Tensor, ops: Any) -> Callable[..., int]:
    function: Callable[..., int] = getattr(ops.mpi_lib, ops._allreduce_function_factory(parameter.data))
    return function


def _is_plain(gradient: torch.Tensor | None, dtype: torch.dtype) -> bool:
    return (
        gradient is not None
        and gradient.dtype is dtype
        and gradient.layout is torch.strided
        and gradient.is_contiguous()
    )


def _synchronize(optimizer: Any, ops: Any) -> None:
    """Waits for all reductions; begins those of parameters that this rank's step did not use."""
    handles, delay, passes = (
        optimizer._handles,
        optimizer._allreduce_delay,
        optimizer.backward_passes_per_step,
    )
    if len(handles) < len(optimizer._requires_update):
        for parameter in optimizer._requires_update.difference(handles):
            handles[parameter] = (None, None)
    for parameter, (handle, _) in handles.items():
        if handle is None:
            handles[parameter] = optimizer._allreduce_grad_async(parameter)
    for parameter, (handle, context) in handles.items():
        # That of a sparse gradient is a function.
        reduced = handle() if callable(handle) else ops.synchronize(handle)
        delay[parameter] = passes
        gradient = parameter.grad
        if reduced is gradient:
            continue
        if gradient.is_sparse:
            gradient.zero_().add_(reduced)
        else:
            gradient.set_(optimizer._compression.decompress(reduced, context))
    handles.clear()
    optimizer._synchronized = True

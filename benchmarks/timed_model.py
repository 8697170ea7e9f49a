"""A model whose arithmetic is waiting: a stand-in for a device that computes elsewhere.

Ranks that share a machine's cores steal each other's time, which GPUs do not. Here each layer sleeps as long
as a device would take, forward and backward, and has a gradient of its own when its backward ends; the host's
cores are left to the engine and the network. A job file names it as ``timed_model:build``.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn


class _Timed(torch.autograd.Function):
    """Hands its input on after some time, and makes a gradient of zeros for its weight after some more."""

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, forward_s: float, backward_s: float
    ) -> torch.Tensor:
        ctx.backward_s, ctx.shape = backward_s, weight.shape
        time.sleep(forward_s)
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        began_s = time.perf_counter()
        gradient = torch.zeros(ctx.shape)
        time.sleep(max(0.0, ctx.backward_s - (time.perf_counter() - began_s)))
        return grads[0], gradient, None, None


class TimedModel(nn.Module):
    """Layers of one weight each.

    Args:
        layers: How many.
        layer_bytes: Of a layer's weight, and so of its gradient.
        forward_ms: Of a layer.
        backward_ms: Of a layer.
    """

    def __init__(self, layers: int, layer_bytes: int, forward_ms: float, backward_ms: float) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(layer_bytes // 4) for _ in range(layers))
        self._seconds = forward_ms / 1e3, backward_ms / 1e3

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The first two values of each sample, as if they were the scores of two classes."""
        values = inputs.flatten(1)[:, :2]
        for weight in self.weights:
            values = _Timed.apply(values, weight, *self._seconds)  # type: ignore[no-untyped-call]
        return values


build = TimedModel

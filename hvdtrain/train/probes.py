"""Tries out how a model behaves in training: whether it draws random numbers, whether samples mix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hvdtrain.train.randomness import seed_everything
from hvdtrain.train.sync_batchnorm import SyncBatchNorm

_ROUNDING = 1e-4  # of the outputs' norm: what another size of batch may change by rounding


@dataclass(frozen=True)
class Behaviour:
    """How a model's forward pass in training mode behaves.

    Attributes:
        is_random: Another seed gives other outputs for the same inputs.
        mixes_samples: A sample's output depends on the other samples of its batch; not known, and so False,
            of a model that is random.
        batchnorms: Names of the layers that normalise over the batch of one rank.
        random_layers: Names of the layers whose kind is known to draw random numbers.
    """

    is_random: bool = False
    mixes_samples: bool = False
    batchnorms: tuple[str, ...] = ()
    random_layers: tuple[str, ...] = ()


def probe_forward(
    model: nn.Module, inputs: torch.Tensor | None, device: torch.device, seed: int
) -> Behaviour:
    """Runs a training pass a few times; changes the model's buffers, so it comes last.

    Layers that normalise over all ranks are put in evaluation mode: the pass is this process's alone.

    Args:
        model: The model itself.
        inputs: A batch; None, where inputs are no tensors, leaves only the layers to look at.
        device: Where the model is.
        seed: Of the draws.
    """
    model.train()
    batchnorms, drawing = [], []
    for name, layer in model.named_modules():
        if isinstance(layer, SyncBatchNorm | nn.SyncBatchNorm):
            layer.eval()
        elif isinstance(layer, _BatchNorm):
            batchnorms.append(name)
        elif isinstance(layer, nn.modules.dropout._DropoutNd | nn.RReLU):
            drawing.append(name)
    names = tuple(batchnorms), tuple(drawing)
    if inputs is None:
        return Behaviour(bool(drawing), bool(batchnorms), *names)
    inputs = inputs.to(device)
    once, again = (_outputs(model, inputs, seed + number) for number in (0, 1))
    is_random = not _is_close(once, again)
    half = len(inputs) // 2
    mixes = not is_random and half > 1 and not _is_close(once[:half], _outputs(model, inputs[:half], seed))
    return Behaviour(is_random, mixes, *names)


@torch.no_grad()
def _outputs(model: nn.Module, inputs: torch.Tensor, seed: int) -> torch.Tensor:
    seed_everything(seed)
    return torch.as_tensor(model(inputs)).double()


def _is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).norm() <= _ROUNDING * one.norm())

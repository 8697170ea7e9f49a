"""Which layers cannot train on one sample: batch norm of one value per channel has no variance."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def one_value_layers(model: nn.Module, sample: torch.Tensor | None) -> list[str]:
    """Names of the batch norms that get one value per channel from one sample.

    A batch norm over images of several pixels trains on one sample; one after a pooling to 1x1, or over
    features without places, does not. Found by one pass in evaluation mode, which changes nothing.

    Args:
        model: As built, before batch norms are made to work over all ranks.
        sample: An input without the batch dimension; None, where inputs are no tensors, finds none.
    """
    modes = {name: module.training for name, module in model.named_modules()}
    norms = {name: module for name, module in model.named_modules() if _needs_variance(module)}
    found: list[str] = []
    if sample is None or not norms:
        return found
    hooks = [norm.register_forward_pre_hook(partial(_note, found, name)) for name, norm in norms.items()]
    device = next(model.parameters()).device
    model.eval()
    try:
        with torch.no_grad():
            model(sample.unsqueeze(0).to(device))
    finally:
        for hook in hooks:
            hook.remove()
        for name, module in model.named_modules():
            module.training = modes[name]
    return list(dict.fromkeys(found))


def _needs_variance(module: nn.Module) -> bool:
    """Whether a layer takes the variance of its batch; over all ranks is another matter."""
    return isinstance(module, _BatchNorm) and module.training and not isinstance(module, nn.SyncBatchNorm)


def _note(found: list[str], name: str, _module: nn.Module, inputs: tuple[Any, ...]) -> None:
    values = inputs[0]
    if isinstance(values, torch.Tensor) and values.numel() == values.shape[1]:
        found.append(name)

"""The loss of a classifier, and what to say of labels that are none."""

from __future__ import annotations

import torch

from hvdtrain.errors import InputError
from hvdtrain.train.metrics import classification


def classify(
    outputs: torch.Tensor, targets: torch.Tensor, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and right answers of a batch whose targets are still on the CPU.

    Raises:
        InputError: A target is no class of the model's.
    """
    if device.type == "cuda":
        # There a wrong label would end the process without a word about it.
        _check_labels(outputs, targets)
    try:
        return classification(outputs, targets.to(device, non_blocking=True))
    except (IndexError, RuntimeError):
        _check_labels(outputs, targets)
        raise


def _check_labels(outputs: torch.Tensor, targets: torch.Tensor) -> None:
    if targets.dim() != 1 or outputs.dim() != 2 or not len(targets):
        return
    if targets.dtype.is_floating_point:
        kind = str(targets.dtype).removeprefix("torch.")
        raise InputError(
            f"the data has the label {float(targets[0]):g} of type {kind}",
            legal="whole numbers, the numbers of classes",
            do="mend the data",
        )
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= outputs.shape[1]:
        wrong = low if low < 0 else high
        raise InputError(
            f"the data has the label {wrong}, and the model gives scores for {outputs.shape[1]} classes",
            legal=f"labels from 0 to {outputs.shape[1] - 1}",
            do="give the model as many classes as the data has, or mend the data",
        )

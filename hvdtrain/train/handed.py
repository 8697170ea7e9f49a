"""What a user's loop may hand to ``run.step``."""

from __future__ import annotations

import math

import torch

from hvdtrain.errors import InputError


def check_handed(loss: object, weight: object) -> None:
    """Refuses what cannot make a step, before any rank waits for it.

    Raises:
        InputError: The loss is no tensor of one number with a gradient, or the weight is no finite number
            from 0.
    """
    _check_loss(loss)
    _check_weight(weight)


def _check_loss(loss: object) -> None:
    if not isinstance(loss, torch.Tensor):
        raise InputError(f"run.step got a {type(loss).__name__} as the loss", legal="a tensor of one number")
    if loss.numel() != 1:
        raise InputError(
            f"run.step got a loss of shape {tuple(loss.shape)}",
            legal="one number, the mean over this rank's batch",
            do="use reduction='mean', or loss.mean()",
        )
    if not loss.requires_grad:
        raise InputError(
            "run.step got a loss without a gradient: no trained parameter is in it",
            do="compute it with the model that run.distribute returned, outside of torch.no_grad()",
        )


def _check_weight(weight: object) -> None:
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if weight is not None and not (is_number and 0 <= weight < math.inf):  # type: ignore[operator]
        raise InputError(
            f"run.step got weight={weight!r}",
            legal="a finite number from 0, such as tokens.item()",
            do="give what the loss is a mean over: its number of samples or tokens",
        )

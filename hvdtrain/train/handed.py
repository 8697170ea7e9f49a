"""What a user's script may hand to a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn
from torch.utils.data import DataLoader

from hvdtrain.errors import InputError
from hvdtrain.train.settings import BACKENDS


def check_start(backend: object, seed: object, tuning: object) -> None:
    """Refuses arguments of ``hvdtrain.start`` that are none.

    Raises:
        InputError: With the argument's name.
    """
    if backend not in BACKENDS:
        raise InputError(f"start got backend={backend!r}", legal=", ".join(BACKENDS))
    _check_count("start got seed", seed, 0, 2**63 - 1)
    if not isinstance(tuning, Mapping):
        raise InputError(f"start got tuning={tuning!r}", legal="a mapping such as {'fusion_mb': 64}")


def check_pair(model: object, optimizer: object, known: Iterable[int]) -> None:
    """Refuses what ``run.distribute`` cannot take.

    Args:
        model: Should be a module.
        optimizer: Should be one of its optimizers.
        known: The identities of optimizers that were distributed.

    Raises:
        InputError: What was given instead, or that it was given before.
    """
    if not isinstance(model, nn.Module):
        raise InputError(
            f"run.distribute got a {type(model).__name__} as the model", legal="a torch.nn.Module"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        kind = type(optimizer).__name__
        raise InputError(f"run.distribute got a {kind} as the optimizer", legal="a torch.optim.Optimizer")
    if id(optimizer) in known or isinstance(model, nn.parallel.DistributedDataParallel):
        raise InputError("run.distribute got what it distributed before", do="distribute each optimizer once")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise InputError(
            "run.distribute got a model on the device meta, which has no values",
            do="give it values first, with model.to_empty(device=...) and its initialisation",
        )


def check_feed(dataset: object, shuffle: object, workers: object) -> None:
    """Refuses arguments of ``run.loader`` that are none; its batch size is checked where it is used.

    Raises:
        InputError: With the argument's name.
    """
    if isinstance(dataset, DataLoader):
        raise InputError(
            "run.loader got a DataLoader",
            legal="a data set",
            do="give its .dataset, or iterate over run.progress(your_loader)",
        )
    if isinstance(dataset, Mapping):
        raise InputError("run.loader got a mapping", legal="a data set with len() and [index]")
    if not isinstance(shuffle, bool):
        raise InputError(f"run.loader got shuffle={shuffle!r}", legal="True, False")
    _check_count("run.loader got workers", workers, 0, 1024)


def check_epochs(count: object) -> None:
    """Refuses what is no number of epochs.

    Raises:
        InputError: It is none.
    """
    _check_count("run.epochs got", count, 0, 2**31)


def check_resume(keep_last: object, signals: object) -> None:
    """Refuses arguments of ``run.resume`` that are none.

    Raises:
        InputError: With the argument's name.
    """
    _check_count("run.resume got keep_last", keep_last, 1, 2**31)
    legal = ("SIGTERM", "SIGUSR1", "SIGUSR2")
    if isinstance(signals, str) or not isinstance(signals, Sequence) or not set(signals) <= set(legal):
        raise InputError(f"run.resume got signals={signals!r}", legal=f"a list of {', '.join(legal)}")


def check_batches(batches: object) -> None:
    """Refuses what nobody can iterate over.

    Raises:
        InputError: It is none.
    """
    if not isinstance(batches, Iterable) and not hasattr(batches, "__getitem__"):
        raise InputError(
            f"run.progress got {batches!r}", legal="what run.loader gave, or an iterable of batches"
        )


def _check_count(what: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InputError(f"{what} {value!r}", legal=f"a whole number from {low} to {high}")


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

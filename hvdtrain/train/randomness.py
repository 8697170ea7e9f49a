"""The generators that training draws from."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch


def seed_everything(seed: int) -> None:
    """Seeds the generators of Python, numpy and torch."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state(device: torch.device) -> dict[str, Any]:
    """Where this rank's generators stand, as tensors and plain values."""
    name, keys, position, has_gauss, gauss = numpy.random.get_state()
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (
            str(name),
            torch.from_numpy(numpy.asarray(keys, dtype="int64")),
            position,
            has_gauss,
            gauss,
        ),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Puts this rank's generators where ``random_state`` found them."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, *rest = state["numpy"]
    numpy.random.set_state((name, keys.numpy().astype("uint32"), *rest))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)

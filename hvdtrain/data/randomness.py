"""Random generators whose course is the data's own: the model's draws do not depend on a loader."""

from __future__ import annotations

import random
from types import TracebackType
from typing import Any

import numpy as np
import torch

_States = tuple[Any, Any, torch.Tensor]


class OwnRandom:
    """A context in which the global random generators have a course of their own.

    They are seeded whenever it is entered and have the surrounding program's state outside of it: the
    model's dropout does not depend on the loader. CUDA's generators are left alone.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __enter__(self) -> None:
        self._outer = _states()
        self._begin()

    def _begin(self) -> None:
        seed_generators(self._seed)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _set_states(self._outer)


def seed_generators(seed: int) -> None:
    """Seeds the global generators of Python, NumPy and PyTorch (CPU), in some 10 us.

    Args:
        seed: In ``[0, 2^64)``, all bits of it random.
    """
    random.seed(seed)
    # Both take 32 bits into the same generator: of the same ones they would draw the same numbers.
    np.random.seed(seed >> 32)
    torch.default_generator.manual_seed(seed & 0xFFFFFFFF)


class Course(OwnRandom):
    """The same, but each time it is entered it goes on where it was left the last time."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._inner: _States | None = None

    def _begin(self) -> None:
        if self._inner is None:
            super()._begin()
        else:
            _set_states(self._inner)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inner = _states()
        super().__exit__(kind, error, trace)


def _states() -> _States:
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state()


def _set_states(states: _States) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.default_generator.set_state(states[2])

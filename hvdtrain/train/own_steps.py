"""The steps of a distributed optimizer are ``run.step``'s alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hvdtrain.errors import InputError


class OwnSteps:
    """Refuses steps that a script takes beside ``run.step``, twice or without a reduction."""

    def __init__(self) -> None:
        self._is_allowed = False
        self._refused: dict[int, torch.optim.Optimizer] = {}

    @property
    def known(self) -> Collection[int]:
        """The identities of the optimizers whose steps are refused."""
        return self._refused.keys()

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """``run.step`` is at work."""
        self._is_allowed = True
        try:
            yield
        finally:
            self._is_allowed = False

    def refuse(self, *optimizers: torch.optim.Optimizer) -> None:
        """From now on.

        Args:
            optimizers: As the user gave it, and as the engine made it: Horovod makes another object over the
                same parameters, and the first one would still step them.
        """
        for optimizer in optimizers:
            if id(optimizer) not in self._refused:
                self._refused[id(optimizer)] = optimizer
                optimizer.register_step_pre_hook(self._check)

    def _check(self, *_: Any) -> None:
        if not self._is_allowed:
            raise InputError(
                "optimizer.step() was called outside of run.step",
                do="leave out loss.backward(), optimizer.step() and optimizer.zero_grad(): "
                "run.step(loss, optimizer) does all three",
            )

"""What the ranks of a script tell each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from hvdtrain.backends.base import Backend
from hvdtrain.errors import InputError
from hvdtrain.train.waiting import Waiting
from hvdtrain.train.watched import WatchedBackend


class Peers:
    """One rank among those of a run. All ranks call its methods in the same order."""

    def __init__(self, engine: Backend, waiting: Waiting) -> None:
        self.rank, self.size, self.local_rank = engine.rank, engine.size, engine.world.local_rank
        self.device, self.backend_name = engine.device, engine.name
        self._engine, self._waiting = engine, waiting
        self._backend: Backend = WatchedBackend(engine, waiting)
        self._is_open = True
        # Where all wait for one, however long that takes. Prepared while all are here: a rank that ends
        # early could not do it alone.
        self._meet = engine.prepare_meeting()

    def sum(self, value: torch.Tensor | float) -> torch.Tensor:
        """The element-wise sum over all ranks; collective."""
        tensor = torch.as_tensor(value).detach()
        if tensor.device.type == "cpu":
            self._begin_call("run.sum")
        else:  # NCCL's sums are not waited for, and no abort is to be feared
            self._check_open()
        return self._backend.sum(tensor, "run.sum")

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, any picklable object, on all ranks; collective."""
        self._begin_call("run.gather")
        with self._waiting.call("run.gather"):
            return self._backend.gather(value)

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value on all ranks; collective."""
        self._begin_call("run.broadcast")
        return self._backend.broadcast(value)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """What rank 0 does while the others wait for it at the end of the block, however long; collective.

        Yields:
            Whether this is rank 0: ``with run.alone() as is_mine:`` and ``if is_mine:`` inside of it.

        Raises:
            InputError: A collective call stands inside.
        """
        self._check_open()
        with self._waiting.call("run.alone"):
            pass  # refused inside of another block
        with self._waiting.apart(partial(self._meet, "run.alone")):
            yield self.rank == 0

    def _begin_call(self, call: str) -> None:
        self._check_open()
        if not self._engine.tells_apart:
            with self._waiting.call(call):
                self._meet(call)

    def _check_open(self) -> None:
        if not self._is_open:
            raise InputError("the run was closed", do="call its methods inside of its with block")

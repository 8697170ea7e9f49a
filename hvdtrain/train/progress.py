"""Lines about a user's loop, on rank 0."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch

from hvdtrain.backends.base import Backend
from hvdtrain.train.step import Share, StepEnd

_EVERY_S = 5.0


class Progress:
    """Counts batches, samples and losses of a loop over a loader.

    While it runs a line tells rank 0's own loss of its last batch; at the end of the loop one tells the mean
    over all samples of all ranks.
    """

    def __init__(self, backend: Backend, logger: logging.Logger) -> None:
        self._backend, self._logger = backend, logger
        self._losses: list[torch.Tensor] = []
        self._weights: list[float] = []
        self._passes: list[tuple[torch.Tensor, float]] = []  # of the step that is not over
        self._told: object = None

    def lost(self, loss: torch.Tensor, share: Share, of: object) -> None:
        """A pass had this mean loss over its share; of several models the one that came first is told."""
        self._told = self._told or of
        if share.weight and of is self._told:
            self._passes.append((loss.detach().reshape(()), share.weight))

    def stepped(self, of: object, end: StepEnd) -> None:
        """A step is over; the losses of one that was left out are no part of the mean."""
        if of is not self._told:
            return
        for loss, weight in () if end.skipped else self._passes:
            self._losses.append(loss)
            self._weights.append(weight)
        self._passes = []

    def watch(self, batches: Iterable[Any], epoch: int | None, num_epochs: int | None) -> Iterator[Any]:
        """The batches, told about; collective at their end. Another loop may stand inside."""
        outer = self._losses, self._weights, self._passes, self._told
        self._losses, self._weights, self._passes, self._told = [], [], [], None
        try:
            yield from self._watch(batches, epoch, num_epochs)
        finally:
            self._losses, self._weights, self._passes, self._told = outer

    def _watch(self, batches: Iterable[Any], epoch: int | None, num_epochs: int | None) -> Iterator[Any]:
        where = f"epoch {epoch + 1}/{num_epochs}  " if epoch is not None else ""
        total = _length(batches)
        began_s = told_s = time.monotonic()
        count = 0
        for count, batch in enumerate(batches, 1):
            yield batch
            if self._backend.rank == 0 and time.monotonic() - told_s >= _EVERY_S:
                told_s = time.monotonic()
                loss = f"  loss of rank 0 {self._losses[-1].item():.4f}" if self._losses else ""
                self._logger.info("%sbatch %d%s%s", where, count, total, loss)
        self._tell_end(where, count, time.monotonic() - began_s)

    def _tell_end(self, where: str, count: int, elapsed_s: float) -> None:
        weights = torch.tensor(self._weights, dtype=torch.float64)
        losses = torch.stack(self._losses).cpu().double() if self._losses else weights
        sums = torch.stack([(losses * weights).sum(), weights.sum()])
        lost, weight = self._backend.sum(sums, "progress").tolist()
        if weight:
            rate = weight / max(elapsed_s, 1e-9)
            text = "%s%d batches  loss %.4f  %.0f samples/s"
            self._logger.info(text, where, count, lost / weight, rate)


def _length(batches: Iterable[Any]) -> str:
    try:
        return f"/{len(batches)}" if isinstance(batches, Sized) else ""
    except TypeError:  # a stream
        return ""

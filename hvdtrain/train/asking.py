"""Agrees on whether a rank was asked to end, where the ranks wait for data and take no step.

In training the answer travels with the gradients. Before the first batch of a loop, which may take minutes
where files are far away, and in an evaluation there are none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import torch

from hvdtrain.data.loader import Batch, PartitionLoader
from hvdtrain.train.parts import Parts

# Between two looks at the first batch: at most a quarter of what was waited so far, and of a second.
_FIRST_PAUSE_S, _GROWTH, _LONGEST_PAUSE_S = 0.002, 1.25, 0.25
# Who waits so long for a batch waits for the ranks' answer too, before the next one.
_SLOW_S = 1.0

Answer = Callable[[], torch.Tensor]


class Asking:
    """Lets the ranks of a run hear of each other's requests to end.

    Args:
        parts: What trains; without a keeper nobody asks.
        end: Saves and ends the run, by raising; collective.
    """

    def __init__(self, parts: Parts, end: Callable[[], None]) -> None:
        self._parts, self._end = parts, end

    def begun(self, loader: PartitionLoader, epoch: int, consumed: int = 0) -> Iterator[Batch]:
        """The batches of a loop, once every rank has its first one; collective.

        Args:
            loader: Whose processes read them. A rank that reads itself hears of nothing meanwhile.
            epoch: From 0.
            consumed: Samples of the epoch that were used before.
        """
        progress = self._parts.progress
        progress.enter("loading")
        progress.begin_loop()
        batches = loader.batches(epoch, consumed)
        if self._parts.keeper is not None and loader.workers:
            self._await_first(loader)
            progress.enter("loading")
        yield from batches

    def _await_first(self, loader: PartitionLoader) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            is_missing = not loader.has_first
            self._parts.progress.enter("loading" if is_missing else "agreement")
            num_missing, num_asked = self._start_sum(is_missing, self._is_asked())().tolist()
            if num_asked:
                self._end()
            if not num_missing:
                return
            time.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, pause_s * _GROWTH)

    def between(self, batches: Iterable[Batch], step: int) -> Iterator[Batch]:
        """The batches of an evaluation, equally many on all ranks, unless one was asked to end; collective.

        Args:
            batches: What is evaluated.
            step: Steps that were taken before.
        """
        if self._parts.keeper is None:
            yield from batches
            return
        answer: Answer | None = None
        iterator = iter(batches)
        while True:
            began_s = time.monotonic()
            batch = next(iterator, None)
            is_slow = time.monotonic() - began_s > _SLOW_S
            if answer is not None:  # of the batch before: nobody waits for the slowest rank of this one
                self._heed(answer, step)
            if batch is None:
                return
            self._parts.progress.enter("evaluation")
            answer = self._start_sum(self._is_asked())
            yield batch
            if is_slow:
                self._heed(answer, step)
                answer = None

    def _heed(self, answer: Answer, step: int) -> None:
        """Ends the run where a rank was asked to."""
        self._parts.progress.enter("agreement")
        if answer().item():
            self._end()
        self._parts.progress.tick(step)

    def _is_asked(self) -> bool:
        return self._parts.watch.is_asked()

    def _start_sum(self, *flags: bool) -> Answer:
        """Begins to count the ranks that say yes."""
        backend = self._parts.backend
        own = torch.tensor([float(flag) for flag in flags], device=backend.device)
        return backend.start_sum(own, f"asked{len(flags)}")

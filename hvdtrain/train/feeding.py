"""What a user's loop iterates over: our exact loader, or any loader of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from hvdtrain.backends.base import Backend
from hvdtrain.data.agreement import check_equal_batches
from hvdtrain.data.batch import Batch
from hvdtrain.errors import InputError
from hvdtrain.train.course import Course, Loop
from hvdtrain.train.step import Share

READS_EVERYTHING = (
    "each rank reads the whole data set: give the DataLoader a DistributedSampler, or use run.loader"
)


class Batches(Protocol):
    """A loader of ours: ``PartitionLoader`` or ``StreamLoader``."""

    def batches(self, epoch: int, consumed: int = 0) -> Iterator[Batch]:
        """The rank's passes of an epoch, from as many used samples on."""

    def close(self) -> None:
        """Ends worker processes."""


@dataclass(frozen=True)
class Pulse:
    """What feeds tell the run.

    Attributes:
        begin: A pass begins, with this share, as that batch of its loop, from 1; its inputs are filler where
            the weight is 0.
        quiet: Passes that belong to no step begin (evaluation); collective.
        course: Where the script is; it hears of loops over passes.
        end: The loop whose pass is in hand ended, also by ``break``.
        asked: A training loop asks for its next batch.
    """

    begin: Callable[[Share, int], None]
    quiet: Callable[[], None]
    course: Course
    end: Callable[[], None]
    asked: Callable[[], None] = lambda: None


@dataclass
class ReadingPlace:
    """How far the passes over a loader are.

    Attributes:
        num_passed: Whole passes.
        consumed: Samples of the present one that all ranks used together.
        is_inside: Whether there is a present one; one that begins where it was left is none yet.
    """

    num_passed: int = 0
    consumed: int = 0
    is_inside: bool = False


class Loader:
    """Batches of this rank's part of a data set, on this rank's device.

    Every sample is used exactly once per epoch over all ranks, all ranks take equally many passes, and the
    order changes from epoch to epoch by itself. A rank for which the last step has no samples gets
    samples that do not count.

    ``len`` is the number of batches of an epoch, the same on all ranks.

    Attributes:
        train: Whether its batches make steps.
        place: How far it is, for a checkpoint.
        order: What decides the order of an epoch's samples, by name.
    """

    def __init__(
        self,
        batches: Batches,
        backend: Backend,
        pulse: Pulse,
        *,
        train: bool = True,
        order: Mapping[str, int | bool] | None = None,
    ) -> None:
        self._batches, self._backend, self._pulse, self.train = batches, backend, pulse, train
        self.order = order or {}
        self.place = ReadingPlace()
        self.sampler: None = None

    def __len__(self) -> int:
        count = getattr(self._batches, "num_batches", None)
        if count is None:
            raise TypeError("the length of a stream is not known")
        return int(count())

    def __iter__(self) -> Iterator[Any]:
        """The batches as the data set collates them: (inputs, targets) where its samples are pairs."""
        course, before = self._pulse.course, self.place
        # What was left in the middle goes on in the order that it had.
        epoch = before.num_passed if course.epoch is None or before.consumed else course.epoch
        here = self.place = ReadingPlace(epoch, is_inside=True)
        loop = course.enter(self) if self.train else Loop()
        (self._pulse.asked if self.train else self._pulse.quiet)()
        try:
            for count, batch in enumerate(self._asked_for(epoch, before.consumed), 1):
                here.consumed = batch.consumed
                if self.train:
                    course.took(loop)
                    total = None if batch.global_count is None else float(batch.global_count)
                    self._pulse.begin(Share(batch.count, total, batch.number, batch.num_passes), count)
                elif not batch.count:
                    continue
                yield moved(self._backend.device, _content(batch))
            loop.is_over = True
            loop.has_stepped |= here.consumed == 0 < before.consumed  # there was nothing left to step on
        finally:
            self._leave(loop, here, before)

    def _asked_for(self, epoch: int, consumed: int) -> Iterator[Batch]:
        """The passes, with a word before each of them that it is waited for."""
        for batch in self._batches.batches(epoch, consumed):
            yield batch
            if self.train:
                self._pulse.asked()

    def _leave(self, loop: Loop, here: ReadingPlace, before: ReadingPlace) -> None:
        # Who goes on and only looks at batches first finds the place where steps go on as it was.
        is_unused = before.consumed > 0 and not (loop.has_stepped or loop.saw_step)
        loop.is_over &= not is_unused
        if self.place is here:  # and no newer loop began
            self.place = before if is_unused else ReadingPlace(here.num_passed + 1)
        if self.train and self._pulse.course.leave(loop):
            self._pulse.end()

    def close(self) -> None:
        """Ends worker processes."""
        self._batches.close()


class OwnLoader:
    """Any iterable of batches that the user made, held to the same number of batches on all ranks.

    Args:
        batches: What is iterated over.
        backend: How bytes move.
        pulse: What the run hears.
        accumulate: Passes that make a step.
    """

    def __init__(self, batches: Iterable[Any], backend: Backend, pulse: Pulse, accumulate: int) -> None:
        self._batches, self._backend, self._pulse, self._accumulate = batches, backend, pulse, accumulate

    def __iter__(self) -> Iterator[Any]:
        loop = self._pulse.course.enter()
        try:
            yield from self._passes(loop)
        finally:
            if self._pulse.course.leave(loop):
                self._pulse.end()

    def _passes(self, loop: Loop) -> Iterator[Any]:
        known = self._agree_lengths()
        epoch = self._pulse.course.epoch
        sampler: Any = getattr(self._batches, "sampler", None)
        if epoch is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)  # which DistributedSampler's users forget
        number = 0
        ahead = _Ahead(self._batches)
        while True:
            self._pulse.asked()
            has_batch = ahead.look()
            if not known:
                self._agree_next(has_batch, ahead.num_taken)
            elif has_batch != (ahead.num_taken < known):
                given = "goes on" if has_batch else "ended"
                raise InputError(
                    f"the loader of rank {self._backend.rank} {given} after {ahead.num_taken} batches, "
                    f"but its len() is {known}",
                    do="mend its len(), or let hvdtrain split the data: run.loader(dataset, batch_size)",
                )
            if not has_batch:
                return
            batch = ahead.take()
            self._pulse.course.took(loop)
            left = self._accumulate if known is None else known - (ahead.num_taken - 1 - number)
            num_passes = min(self._accumulate, left)
            is_last = number == num_passes - 1
            self._pulse.begin(Share(num_samples(batch), None, number, num_passes), ahead.num_taken)
            number = 0 if is_last else number + 1
            yield batch

    def _agree_lengths(self) -> int | None:
        """Batches of every rank, where all loaders tell; refuses lengths that differ."""
        own = length_of(self._batches)
        lengths = self._backend.gather(own)
        if None in lengths:
            if self._accumulate > 1:
                raise InputError(
                    f"accumulate is {self._accumulate}, and the loader has no len() to find the last step by",
                    do="give it a len(), or let hvdtrain split the data: run.loader(dataset, batch_size)",
                )
            return None
        check_equal_batches(dict(enumerate(lengths)))
        return own

    def _agree_next(self, has_batch: bool, num_taken: int) -> None:
        """All ranks go on, or all stop; a rank that ends alone is named on all of them."""
        flag = torch.tensor([int(has_batch)], dtype=torch.int64)
        going = int(self._backend.sum(flag, "next").item())
        if going in (0, self._backend.size):
            return
        # Those that go on took one batch more than the others, at least.
        ended = self._backend.gather(num_taken + int(has_batch))
        check_equal_batches(dict(enumerate(ended)))


class _Ahead:
    """An iterator that can be asked whether there is more."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._iterator = iter(batches)
        self._next: list[Any] = []
        self.num_taken = 0

    def look(self) -> bool:
        """Whether there is another batch."""
        if not self._next:
            self._next = list(islice(self._iterator, 1))
        return bool(self._next)

    def take(self) -> Any:
        """The batch that ``look`` saw."""
        self.num_taken += 1
        return self._next.pop()


def length_of(batches: object) -> int | None:
    """``len`` where it is known; a DataLoader over an iterable data set has the method, but no answer."""
    try:
        return len(batches) if isinstance(batches, Sized) else None
    except (TypeError, NotImplementedError):
        return None


def reads_everything(batches: object) -> bool:
    """Whether a loader of the user's gives each rank the whole data set: nothing in it splits it."""
    return isinstance(batches, DataLoader) and isinstance(batches.sampler, RandomSampler | SequentialSampler)


def num_samples(batch: Any) -> int:
    """The first dimension of the first tensor in a batch; 1 where it holds none."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() else 1
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    for part in parts:
        if isinstance(part, torch.Tensor | Mapping | list | tuple):
            return num_samples(part)
    return 1


def moved(device: torch.device, data: Any) -> Any:
    """A batch with all its tensors on a device."""
    if device.type == "cpu":
        return data
    if isinstance(data, torch.Tensor):
        return data.to(device, non_blocking=True)
    if isinstance(data, Mapping):
        return {key: moved(device, value) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(moved(device, value) for value in data))
    if isinstance(data, list | tuple):
        return type(data)(moved(device, value) for value in data)
    return data


def _content(batch: Batch) -> Any:
    return batch.inputs if batch.targets is None else (batch.inputs, batch.targets)

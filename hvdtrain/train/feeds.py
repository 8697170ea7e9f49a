"""Opens a data set of the user's as this rank's batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils.data import IterableDataset

from hvdtrain.backends.base import Backend
from hvdtrain.data.agreement import check_equal_lengths, check_world
from hvdtrain.data.batch import Batch
from hvdtrain.data.loader import PartitionLoader
from hvdtrain.data.partition import Partition, Tail
from hvdtrain.data.stream import StreamLoader
from hvdtrain.errors import InputError
from hvdtrain.train.feeding import Batches
from hvdtrain.train.loading import tail_notes


@dataclass(frozen=True, kw_only=True)
class Feed:
    """What ``Run.loader`` was asked for.

    Attributes:
        batch_size: Samples per pass on each rank.
        accumulate: Passes of a step.
        tail: The short last step.
        shuffle: A new order in each epoch.
        workers: Processes that read.
        seed: Of the order and of random augmentation.
        train: False for evaluation.
    """

    batch_size: int
    accumulate: int
    tail: Tail
    shuffle: bool
    workers: int
    seed: int
    train: bool


class ToldStream:
    """A stream of which the log says after each epoch what it left out: nobody knows that before."""

    def __init__(self, stream: StreamLoader, logger: logging.Logger) -> None:
        self._stream, self._logger = stream, logger

    def batches(self, epoch: int, consumed: int = 0) -> Iterator[Batch]:
        """The rank's passes of an epoch, from as many used samples on; collective."""
        yield from self._stream.batches(epoch, consumed)
        if count := self._stream.num_dropped:
            text = "1 sample was" if count == 1 else f"{count} samples were"
            self._logger.info("epoch %d: %s dropped at the end of the stream (tail=drop)", epoch + 1, text)

    def close(self) -> None:
        """Ends worker processes."""
        self._stream.close()


def open_feed(dataset: Any, feed: Feed, backend: Backend, logger: logging.Logger) -> Batches:
    """This rank's batches; collective. The logger hears of samples that are left out or read twice.

    Raises:
        InputError: The data set is of no kind that can be split, differs between ranks or holds too little.
    """
    for rank, other in enumerate(backend.gather(asdict(feed))):
        for key, value in other.items():
            # They would leave their loops at different places, or wait for each other for ever.
            if value != (own := getattr(feed, key)):
                raise InputError(
                    f"run.loader got {key}={own!r} on rank {backend.rank} and {value!r} on rank {rank}",
                    do="give the same on all ranks",
                )
    size = feed.batch_size
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InputError(f"batch_size is {size!r}", legal="an integer from 1")
    if isinstance(dataset, IterableDataset):
        return ToldStream(_stream(dataset, feed, backend), logger)
    if not hasattr(dataset, "__len__"):
        raise InputError(
            f"{type(dataset).__name__} is no data set that can be split",
            legal="a data set with len() and [index], or an IterableDataset",
        )
    length = len(dataset)
    check_equal_lengths(backend.gather(length), "the data set of run.loader")
    if feed.train:
        check_world(length, backend.size, feed.tail)
    partition = Partition(
        length,
        backend.size,
        size * feed.accumulate,
        tail=feed.tail,
        shuffle=feed.shuffle,
        seed=feed.seed,
    )
    for note in tail_notes(partition, "tail"):
        logger.info(note)
    return PartitionLoader(
        dataset,
        partition,
        backend.rank,
        workers=feed.workers,
        pin_memory=backend.device.type == "cuda",
        accumulate=feed.accumulate,
        fill=feed.train,
    )


def order_of(batches: Batches, feed: Feed, size: int) -> dict[str, int | bool]:
    """What decides the order of an epoch's samples, besides the seed; the global batch of a map does not.

    Args:
        batches: As ``open_feed`` gave them.
        feed: What was asked for.
        size: Number of ranks.
    """
    if isinstance(batches, PartitionLoader):
        return {"samples": batches.partition.num_samples, "shuffle": feed.shuffle}
    # Each rank and worker has a part of a stream of its own, and its steps are read again up to the place.
    batch = feed.batch_size * feed.accumulate
    return {"ranks": size, "workers": max(1, feed.workers), "batch": batch}


def _stream(dataset: IterableDataset[Any], feed: Feed, backend: Backend) -> StreamLoader:
    if feed.tail == "pad":
        raise InputError("tail is 'pad', and a stream's length is not known", legal="weight, drop")
    return StreamLoader(
        dataset,
        backend.rank,
        backend.size,
        feed.batch_size * feed.accumulate,
        agree=_adder(backend),
        workers=feed.workers,
        accumulate=feed.accumulate,
        fill=feed.train,
        tail=feed.tail,
        seed=feed.seed,
        pin_memory=backend.device.type == "cuda",
    )


def _adder(backend: Backend) -> Callable[[int], int]:
    def add(count: int) -> int:
        return int(backend.sum(torch.tensor([count], dtype=torch.int64), "stream").item())

    return add

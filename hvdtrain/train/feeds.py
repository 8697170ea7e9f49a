"""Opens a data set of the user's as this rank's batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import IterableDataset

from hvdtrain.backends.base import Backend
from hvdtrain.data.agreement import check_equal_lengths, check_world
from hvdtrain.data.loader import PartitionLoader
from hvdtrain.data.partition import Partition, Tail
from hvdtrain.data.stream import StreamLoader
from hvdtrain.errors import InputError
from hvdtrain.train.feeding import Batches


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


def open_feed(dataset: Any, feed: Feed, backend: Backend) -> Batches:
    """This rank's batches; collective.

    Raises:
        InputError: The data set is of no kind that can be split, differs between ranks or holds too little.
    """
    size = feed.batch_size
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InputError(f"batch_size is {size!r}", legal="an integer from 1")
    if isinstance(dataset, IterableDataset):
        return _stream(dataset, feed, backend)
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
    return PartitionLoader(
        dataset,
        partition,
        backend.rank,
        workers=feed.workers,
        pin_memory=backend.device.type == "cuda",
        accumulate=feed.accumulate,
        fill=feed.train,
    )


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

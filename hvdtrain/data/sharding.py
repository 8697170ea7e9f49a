"""Splits an iterable source into shards, so that all shards together hold each item exactly once.

A source that can split itself does so and reads only its part. Of any other, item i belongs to
shard i mod ``num_shards``: every shard then reads the whole source and keeps its part, which is
right only if the source gives the same items in the same order wherever it is read.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import Any

from torch.utils.data import _utils

from hvdtrain.errors import InputError

_LEGAL = "an IterableDataset, an iterable that can be read again, or a function that makes one"


class Sharded:
    """An iterable source and the way it is split.

    The ways, the first that fits:

    * it has a method ``shard``, called with the keywords ``num_shards`` and ``index``;
    * it is a function that takes the keywords ``num_shards`` and ``index``;
    * it is a pipeline of the package ``webdataset``, which takes rank and size from the variables
      RANK and WORLD_SIZE if it was given ``nodesplitter=webdataset.split_by_node``, and raises
      ValueError if it was not;
    * anything else that is iterable, or a function without arguments that makes it, by number.

    A method ``set_epoch`` of it, and of what ``shard`` gives, is called before each reading. PyTorch's
    ``get_worker_info`` gives None while it is read: a source that also split itself over the workers
    of its rank would lose items.

    Args:
        source: See above.

    Raises:
        InputError: It cannot be read several times, or not be iterated over.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self._is_webdataset = type(source).__module__.partition(".")[0] == "webdataset"
        self._split = _splitter(source)
        self.collate: Callable[[list[Any]], Any] | None = getattr(source, "collate", None)

    @property
    def splits_itself(self) -> bool:
        """Whether a shard reads its own part alone."""
        return self._split is not None or self._is_webdataset

    def open(self, index: int, num_shards: int, epoch: int) -> Shard:
        """Starts to read a shard.

        Args:
            index: In ``range(num_shards)``.
            num_shards: Shards that the items are split over.
            epoch: Passed to ``set_epoch``.
        """
        with _read_alone(), self._told(index, num_shards):
            _tell_epoch(self._source, epoch)
            if self._split:
                part = self._split(index=index, num_shards=num_shards)
                _tell_epoch(part, epoch)  # Hugging Face's begins at epoch 0, whatever the whole was told
                items = iter(part)
            elif self._is_webdataset:
                items = iter(self._source)
            else:
                made = self._source if isinstance(self._source, Iterable) else self._source()
                items = islice(made, index, None, num_shards)
        return Shard(items, lambda: self._told(index, num_shards))

    def _told(self, index: int, num_shards: int) -> Any:
        return _in_environment(index, num_shards) if self._is_webdataset else nullcontext()


class Shard:
    """The items of one shard, to be read in pieces."""

    def __init__(self, items: Iterator[Any], surroundings: Callable[[], Any]) -> None:
        self._items, self._surroundings = items, surroundings
        self.num_read = 0

    def take(self, count: int) -> list[Any]:
        """The next items; fewer than ``count`` where the shard ends."""
        taken = []
        with _read_alone(), self._surroundings():
            for item in islice(self._items, count):
                taken.append(item)
                self.num_read += 1
        return taken


def _tell_epoch(source: Any, epoch: int) -> None:
    if set_epoch := getattr(source, "set_epoch", None):
        set_epoch(epoch)


def _splitter(source: Any) -> Callable[..., Any] | None:
    if callable(shard := getattr(source, "shard", None)):
        return shard  # type: ignore[no-any-return]
    if isinstance(source, Iterator):
        kind = type(source).__name__
        raise InputError(f"a {kind} can be read once only, an epoch reads it again", legal=_LEGAL)
    if isinstance(source, Iterable) and not isinstance(source, str | bytes):
        return None
    if not callable(source):
        raise InputError(f"{type(source).__name__} is no iterable data set", legal=_LEGAL)
    return source if _takes_shards(source) else None


def _takes_shards(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(index=0, num_shards=1)
    except (TypeError, ValueError):
        return False
    return True


@contextmanager
def _read_alone() -> Iterator[None]:
    """Hides from a source that a loader's worker reads it; PyTorch has no public way."""
    worker: Any = _utils.worker
    before, worker._worker_info = worker._worker_info, None
    try:
        yield
    finally:
        worker._worker_info = before


@contextmanager
def _in_environment(index: int, num_shards: int) -> Iterator[None]:
    """What webdataset's splitters look at first: a shard is a node with one worker to them."""
    told = {"RANK": str(index), "WORLD_SIZE": str(num_shards), "WORKER": "0", "NUM_WORKERS": "1"}
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

"""Batches of one rank over a data set that can only be read from its start to its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, get_args

from torch.utils.data import IterableDataset, default_collate, get_worker_info

from hvdtrain.data.batch import Batch
from hvdtrain.data.permutation import mix_words
from hvdtrain.data.prefetch import Prefetcher
from hvdtrain.data.reading import Collate, Failure, OwnRandom, failure, filled
from hvdtrain.errors import InputError

StreamTail = Literal["weight", "drop"]


@dataclass(frozen=True)
class StreamPartition:
    """Splits a stream of unknown length over ranks and steps, as ``Partition`` splits a range.

    Item i is part of step i div B and of rank (i mod B) mod W, with B items per step over W ranks.
    Every rank runs through the same stream, so all of them see where it ends, and the number of
    steps and the real count of the last one are the same everywhere without communication.

    Args:
        num_ranks: Ranks that share the stream.
        global_batch: Items per step over all ranks.
        tail: ``weight`` uses the short last step with its real count, ``drop`` leaves it out.
        seed: Of the random generators that the stream may use, in ``[0, 2^64)``.
    """

    num_ranks: int
    global_batch: int
    tail: StreamTail = "weight"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_ranks", "global_batch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}", legal="an integer from 1")
        if self.tail not in get_args(StreamTail):
            raise InputError(
                f"tail is {self.tail!r}", legal=f"{', '.join(get_args(StreamTail))} for a stream"
            )

    def steps(
        self, items: Iterable[Any], rank: int, consumed: int = 0, shard: int = 0, num_shards: int = 1
    ) -> Iterator[tuple[list[Any], int, int]]:
        """The rank's (items, global count, consumed) of each step.

        Args:
            items: The whole stream, from its start.
            rank: In ``range(num_ranks)``.
            consumed: Items to pass over, already used by all ranks together.
            shard: Only every ``num_shards``-th step is given, beginning with this one.
            num_shards: Readers that share the rank's steps.
        """
        own: list[Any] = []
        place = step = 0
        for position, item in enumerate(items):
            if position < consumed:
                continue
            mine = step % num_shards == shard
            if mine and place % self.num_ranks == rank:
                own.append(item)
            place += 1
            if place == self.global_batch:
                if mine:
                    yield own, place, consumed + (step + 1) * self.global_batch
                    own = []
                place, step = 0, step + 1
        if place and step % num_shards == shard and self.tail == "weight":
            yield own, place, consumed + step * self.global_batch + place


class StreamLoader:
    """Reads one rank's batches of a stream; each item is read into exactly one batch of one rank.

    The data set must give the same items in the same order to every rank and worker and must not
    split itself. Global random generators are seeded with ``mix_words(seed, epoch)`` for it, and
    ``set_epoch(epoch)`` is called where it exists. Every worker of every rank runs through all
    items and keeps its own, whole steps at a time: let the stream give cheap items, such as file
    names, and do the work in ``dataset.collate``, which is called for kept items only.

    Args:
        dataset: An IterableDataset, or any iterable that can be read again for every epoch.
        partition: Who keeps what.
        rank: The rank that reads.
        workers: Processes that read; 0 reads in this process. They live for one epoch.
        pin_memory: Return tensors in page-locked memory; without CUDA it has no effect.
    """

    def __init__(
        self,
        dataset: Iterable[Any],
        partition: StreamPartition,
        rank: int,
        *,
        workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        if isinstance(dataset, Iterator):
            raise InputError(
                f"{type(dataset).__name__} can be read only once",
                legal="an iterable that starts anew each epoch",
            )
        self.partition, self.rank = partition, rank
        self._reader = _StreamReader(dataset, partition, rank)
        seed = mix_words(partition.seed, rank)
        self._prefetcher = Prefetcher(self._reader, None, workers=workers, pin_memory=pin_memory, seed=seed)

    def batches(self, epoch: int, consumed: int = 0) -> Iterator[Batch]:
        """The rank's batches from ``consumed`` items to the end; as many on every rank.

        Raises:
            InputError, SampleError, TrainingError: As for ``PartitionLoader.batches``.
        """
        self._reader.epoch, self._reader.consumed = epoch, consumed
        return self._prefetcher.items(self.rank)

    def close(self) -> None:
        """Ends the worker processes; those that do not stop within 2 s are killed."""
        self._prefetcher.close()

    def __enter__(self) -> StreamLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _StreamReader(IterableDataset[Any]):
    """The batches of one worker of one rank."""

    def __init__(self, dataset: Iterable[Any], partition: StreamPartition, rank: int) -> None:
        self._dataset, self._partition, self._rank = dataset, partition, rank
        self._collate: Collate = getattr(dataset, "collate", default_collate)
        self.epoch = self.consumed = 0

    def __iter__(self) -> Iterator[Batch | Failure]:
        own_random = OwnRandom(mix_words(self._partition.seed, self.epoch))
        batches = self._batches()
        while True:
            # Between two batches this process trains; the stream must not see what that draws.
            with own_random:
                item = next(batches, None)
            if item is None:
                return
            yield item

    def _batches(self) -> Iterator[Batch | Failure]:
        worker = get_worker_info()
        shard, num_shards = (worker.id, worker.num_workers) if worker else (0, 1)
        used = self.consumed
        try:
            if hasattr(self._dataset, "set_epoch"):
                self._dataset.set_epoch(self.epoch)
            steps = self._partition.steps(self._dataset, self._rank, self.consumed, shard, num_shards)
            for items, global_count, used in steps:
                yield filled(Batch(None, None, 0, global_count, used), items, (), self._collate)
        except Exception as error:  # whatever a user's data set may raise
            yield failure(error, f"the stream failed after {used} items", self._rank)

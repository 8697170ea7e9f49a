"""Reads what a rank needs of an iterable source: the part of ``StreamLoader`` in its worker processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import Dataset, default_collate, get_worker_info

from hvdtrain.data.batch import Batch
from hvdtrain.data.permutation import mix_words
from hvdtrain.data.randomness import Course, OwnRandom
from hvdtrain.data.reading import Failure, make_failure, split_pair
from hvdtrain.data.sharding import Shard, Sharded

# Place of a worker in a seed: of what the rank itself puts together, and of filler.
_RANK_ITSELF, _FILLER = 1 << 32, (1 << 32) + 1


@dataclass(frozen=True, slots=True)
class Split:
    """How the items of a source come to the passes of a rank.

    Attributes:
        rank, num_ranks: Who reads.
        batch_size: Samples per rank and step.
        micro: The most samples of a pass.
        seed: Of random augmentation.
    """

    rank: int
    num_ranks: int
    batch_size: int
    micro: int
    seed: int


@dataclass(frozen=True, slots=True)
class Share:
    """What a worker read for one step.

    Attributes:
        passes: The passes of a full step.
        rest: What was left, uncollated: with the rest of the other workers it may fill a step.
        is_end: Whether the shard ended with this share; said once, later shares of it are empty.
    """

    passes: tuple[Batch, ...] = ()
    rest: tuple[Any, ...] = ()
    is_end: bool = False

    def pin_memory(self) -> Share:
        """A copy in page-locked memory; PyTorch's loader calls this in its pinning thread."""
        return replace(self, passes=tuple(batch.pin_memory() for batch in self.passes))


@dataclass(frozen=True, slots=True)
class ShareRequest:
    """Share ``number``, counted over all workers of the rank, of an epoch."""

    epoch: int
    number: int


class ShareReader(Dataset[Any]):
    """Reads the shares of one rank (``Share`` or ``Failure``), in order and in each worker its own.

    Random generators: a source that splits itself draws from a course of its own for each seed,
    epoch, rank and worker. One that is split by number is read whole by every worker, and must give
    the same items to all of them: there the course depends on seed and epoch alone, and items differ
    by their place in it. ``collate`` draws from a course for each share.
    """

    def __init__(self, source: Any, split: Split) -> None:
        self._sharded, self._split = Sharded(source), split
        self._collate = self._sharded.collate or default_collate
        self._shard: Shard | None = None
        self._course = Course(0)

    def __getitem__(self, request: ShareRequest) -> Share | Failure:
        """Reads the worker's next share; never raises what the source raises."""
        info = get_worker_info()
        worker, num_workers = (info.id, info.num_workers) if info else (0, 1)
        split, doing = self._split, "the stream could not be opened"
        try:
            if request.number < num_workers:
                self._open(request.epoch, worker, num_workers)
            shard, size = self._shard, split.batch_size
            if shard is None:
                return Share()  # requests go to the workers in turn, also to one whose shard is over
            doing = f"the stream failed after {shard.num_read} items of its part"
            with self._course:
                samples = shard.take(size)
            if len(samples) < size:
                self._shard = None
                return Share(rest=tuple(samples), is_end=True)
            doing = f"items {shard.num_read - size} to {shard.num_read - 1} of its part make no batch"
            return Share(self.collated(samples, request.epoch, request.number, worker))
        except Exception as error:  # whatever a user's data set may raise
            return make_failure(error, doing, split.rank)

    def _open(self, epoch: int, worker: int, num_workers: int) -> None:
        split = self._split
        words = (split.rank, worker) if self._sharded.splits_itself else ()
        self._course = Course(mix_words(split.seed, epoch, *words))
        # Worker after worker, so that a rank's items are the same whatever the number of its workers.
        index = worker * split.num_ranks + split.rank
        with self._course:
            self._shard = self._sharded.open(index, num_workers * split.num_ranks, epoch)

    def collated(
        self, samples: Sequence[Any], epoch: int, number: int, worker: int = _RANK_ITSELF
    ) -> tuple[Batch, ...]:
        """Samples of a step as its passes."""
        micro, split = self._split.micro, self._split
        passes = []
        with OwnRandom(mix_words(split.seed, epoch, split.rank, worker, number)):
            for start in range(0, len(samples), micro):
                part = list(samples[start : start + micro])
                inputs, targets = split_pair(self._collate(part))
                passes.append(Batch(inputs, targets, len(part), None, 0))
        return tuple(passes)

    def borrowed(self, epoch: int, num_workers: int) -> Batch | None:
        """A pass of the first shard that holds any, for a rank without an item; None where all are empty.

        Raises:
            InputError: The source raised one.
            SampleError: The source raised something else.
        """
        split = self._split
        num_shards = num_workers * split.num_ranks
        # Split by number, the first shard is empty only if all are.
        tried = range(num_shards if self._sharded.splits_itself else 1)
        try:
            for index in tried:
                with Course(mix_words(split.seed, epoch)):
                    samples = self._sharded.open(index, num_shards, epoch).take(split.micro)
                if samples:
                    return self.collated(samples, epoch, 0, _FILLER)[0]
            return None
        except Exception as error:  # whatever a user's data set may raise
            make_failure(error, "the first items of the stream could not be read", split.rank).raise_in_rank()

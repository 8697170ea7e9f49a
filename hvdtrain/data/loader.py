"""Batches of one rank over a ``Partition`` of a map-style data set."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any

from torch.utils.data import Dataset, IterableDataset, Sampler

from hvdtrain.data.batch import Batch
from hvdtrain.data.partition import Partition
from hvdtrain.data.passes import Passes
from hvdtrain.data.permutation import mix_words
from hvdtrain.data.prefetch import Prefetcher
from hvdtrain.data.reading import PassReader, Request
from hvdtrain.errors import InputError

__all__ = ["Batch", "PartitionLoader"]


class PartitionLoader:
    """Reads one rank's batches: each is exactly one pass, and a step is one pass or several.

    With ``workers`` the batches are read ahead by that many processes (see ``Prefetcher`` for how
    they start), which live until ``close`` and get a new order in every epoch.

    Args:
        dataset: Map-style: ``len(dataset)`` and ``dataset[index]``. A batch of it that is a pair is
            taken for (inputs, targets). A method ``collate`` of it replaces PyTorch's, a method
            ``describe`` names samples in messages (see ``PassReader``).
        partition: Who reads what; ``partition.seed`` also seeds random augmentation.
        rank: The rank that reads, in ``range(partition.num_ranks)``.
        workers: Processes that read; 0 reads in this process.
        pin_memory: Return tensors in page-locked memory; without CUDA it has no effect.
        may_skip: The data set may raise ``SkipSample``: the ranks have to add up their counts.
        accumulate: Passes that a full step is cut into, at most (see ``Passes``).
        fill: Give a batch that has no sample the inputs of other samples, as many as a full pass
            has, to be passed through the model with weight 0. It has None only where none of these
            can be read either.

    Raises:
        InputError: The data set is not map-style, or its length is not the partition's.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        partition: Partition,
        rank: int,
        *,
        workers: int = 0,
        pin_memory: bool = False,
        may_skip: bool = False,
        accumulate: int = 1,
        fill: bool = False,
    ) -> None:
        _check_length(dataset, partition.num_samples)
        self.partition, self.rank, self.workers = partition, rank, workers
        self._passes = Passes(partition, rank, accumulate, fill, may_skip)
        self._requests = _Requests(self._passes)
        self._prefetcher: Prefetcher[Batch] = Prefetcher(
            PassReader(dataset, partition.seed, rank, may_skip),
            self._requests,
            workers=workers,
            pin_memory=pin_memory,
            seed=mix_words(partition.seed, rank),
        )

    def num_steps(self, consumed: int = 0) -> int:
        """Optimizer steps from ``consumed`` samples to the end of the epoch, the same on all ranks."""
        return self.partition.num_steps(consumed)

    def num_batches(self, consumed: int = 0) -> int:
        """Passes from ``consumed`` samples to the end of the epoch, the same on all ranks."""
        return self._passes.num_left(consumed)

    def batches(self, epoch: int, consumed: int = 0) -> Iterator[Batch]:
        """The rank's batches from ``consumed`` samples, which lie between two steps, to the end of an epoch.

        A new call ends what an earlier call left unread: workers read one epoch at a time, and begin with the
        call.

        Raises:
            InputError: An image cannot be read, or ``epoch`` or ``consumed`` is out of range.
            SampleError: The data set raised something else; the sample is named.
            TrainingError: A worker process died.
        """
        self._passes.of_epoch(epoch, consumed)  # raises now what is wrong with them
        self._requests.epoch, self._requests.consumed = epoch, consumed
        return self._prefetcher.items(self.rank)

    @property
    def has_first(self) -> bool:
        """Whether the first batch of the newest ``batches`` is to be had without waiting for a worker."""
        return self._prefetcher.has_first or not self.num_batches(self._requests.consumed)

    def close(self) -> None:
        """Ends the worker processes; those that do not stop within 2 s are killed."""
        self._prefetcher.close()

    def __enter__(self) -> PartitionLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Requests(Sampler[Request]):
    """The passes of the epoch that the loader is set to, as the index sampler of a DataLoader."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self.epoch = self.consumed = 0

    def __iter__(self) -> Iterator[Request]:
        epoch = self.epoch
        for part in self._passes.of_epoch(epoch, self.consumed):
            yield Request(part, epoch)


def _check_length(dataset: Dataset[Any], num_samples: int) -> None:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise InputError(
            f"{type(dataset).__name__} is no map-style data set", legal="a data set with len() and [index]"
        )
    if len(dataset) != num_samples:
        raise InputError(f"the data set has {len(dataset)} samples, its partition {num_samples}")

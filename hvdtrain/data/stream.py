"""Batches of one rank of an iterable source, whose length nobody knows beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from types import TracebackType
from typing import Any, Literal

from torch.utils.data import Sampler

from hvdtrain.data.batch import Batch
from hvdtrain.data.passes import check_accumulate
from hvdtrain.data.permutation import mix_words
from hvdtrain.data.prefetch import Prefetcher
from hvdtrain.data.shares import Share, ShareReader, ShareRequest, Split
from hvdtrain.errors import InputError

Agree = Callable[[int], int]


class StreamLoader:
    """Reads one rank's batches of an iterable source; each is one pass, and a step is ``accumulate`` passes.

    The items are split over ``num_ranks * workers`` shards (see ``Sharded``). Before each step the
    ranks agree on its number of samples by one sum, and the epoch ends on all of them together when
    it is 0; a rank that has none left goes on with batches that count 0. Every rank must take the
    same number of batches from ``batches``. With ``drop`` one more sum tells what the epoch left out.

    Args:
        dataset: The source. A method ``collate`` of it replaces PyTorch's.
        rank: The rank that reads, in ``range(num_ranks)``.
        num_ranks: Ranks that share the items.
        batch_size: Samples per rank and step.
        agree: Adds a number up over all ranks; collective.
        workers: Processes that read; 0 reads in this process.
        accumulate: Passes of a step, at most: their size is rounded up.
        fill: Give a batch that has no sample the inputs of other samples, with weight 0: the largest
            batch so far, or of a rank that never had an item those of the first shard that has any.
        tail: ``weight`` uses what is left for a rank's last step, ``drop`` leaves less than
            ``batch_size`` out.
        seed: Of random augmentation, in ``[0, 2^64)``.
        pin_memory: Return tensors in page-locked memory; without CUDA it has no effect.

    Attributes:
        num_dropped: Samples of all ranks that ``drop`` left out of the epoch, known at its end.

    Raises:
        InputError: The source is not iterable or can be read once only, or a number is out of range.
    """

    def __init__(
        self,
        dataset: Any,
        rank: int,
        num_ranks: int,
        batch_size: int,
        *,
        agree: Agree,
        workers: int = 0,
        accumulate: int = 1,
        fill: bool = True,
        tail: Literal["weight", "drop"] = "weight",
        seed: int = 0,
        pin_memory: bool = False,
    ) -> None:
        check_accumulate(accumulate)
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}", legal="an integer from 1")
        if not 0 <= rank < num_ranks:
            raise InputError(f"rank is {rank}", legal=f"an integer from 0 to {num_ranks - 1}")
        self.rank, self.batch_size, self.num_dropped = rank, batch_size, 0
        self._micro = -(-batch_size // accumulate)
        self._num_passes = -(-batch_size // self._micro)
        self._agree, self._fill, self._tail = agree, fill, tail
        self._reader = ShareReader(dataset, Split(rank, num_ranks, batch_size, self._micro, seed))
        self._requests = _Requests()
        self._num_workers, self._num_left = max(1, workers), 0
        self._filler: Batch | None = None
        self._newest = 0
        self._prefetcher: Prefetcher[Share] = Prefetcher(
            self._reader, self._requests, workers=workers, pin_memory=pin_memory, seed=mix_words(seed, rank)
        )

    def batches(self, epoch: int, consumed: int = 0) -> Iterator[Batch]:
        """The rank's batches of an epoch; collective, once per step and at the end.

        Args:
            epoch: From 0.
            consumed: Samples that all ranks used before; their steps are read again and left out.
                They are the same ones only under the same number of ranks and workers and the same batch.

        Raises:
            InputError: ``consumed`` does not lie between two steps.
            SampleError: The source raised something.
            TrainingError: A worker process died.
        """
        self._newest += 1
        self._requests.epoch, self.num_dropped = epoch, 0
        return self._batches(epoch, consumed, self._newest)

    def close(self) -> None:
        """Ends the worker processes; those that do not stop within 2 s are killed."""
        self._prefetcher.close()

    def __enter__(self) -> StreamLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _batches(self, epoch: int, consumed: int, number: int) -> Iterator[Batch]:
        steps, used = self._steps(epoch), 0
        while True:
            if number != self._newest:
                raise RuntimeError("these batches have ended: newer ones were asked for")
            passes = next(steps, ())
            total = self._agree(sum(batch.count for batch in passes))
            if total == 0:
                break
            used, start = used + total, used
            if start >= consumed:
                yield from self._completed(passes, epoch, start, total)
            elif used > consumed:
                raise _no_border(consumed, start, used)
        if self._tail == "drop":
            self.num_dropped = self._agree(self._num_left)
        if used < consumed:
            raise _no_border(consumed, used, used)

    def _steps(self, epoch: int) -> Iterator[Sequence[Batch]]:
        """This rank's part of each step: full ones as they come, then what the workers had left."""
        rest: list[Any] = []
        ended = 0
        for share in self._prefetcher.items(self.rank):
            if share.passes:
                yield share.passes
            rest += share.rest
            ended += share.is_end
            if ended == self._num_workers:
                break
        for number in count():
            samples = rest[number * self.batch_size : (number + 1) * self.batch_size]
            if not samples or (self._tail == "drop" and len(samples) < self.batch_size):
                self._num_left = len(samples)
                return
            yield self._reader.collated(samples, epoch, number)

    def _completed(self, passes: Sequence[Batch], epoch: int, start: int, total: int) -> Iterator[Batch]:
        """As many passes as every rank takes, with what was agreed."""
        for number in range(self._num_passes):
            batch = passes[number] if number < len(passes) else self._empty(epoch)
            if batch.count and self._fill and (not self._filler or batch.count >= self._filler.count):
                self._filler = batch
            is_last = number == self._num_passes - 1
            yield replace(
                batch,
                global_count=total,
                consumed=start + total if is_last else start,
                number=number,
                num_passes=self._num_passes,
            )

    def _empty(self, epoch: int) -> Batch:
        if self._fill and self._filler is None:
            self._filler = self._reader.borrowed(epoch, self._num_workers)
        filler = self._filler or Batch(None, None, 0, None, 0)
        return replace(filler, count=0)


class _Requests(Sampler[ShareRequest]):
    """Shares without end: only the workers know when theirs are over."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[ShareRequest]:
        epoch = self.epoch
        return (ShareRequest(epoch, number) for number in count())


def _no_border(consumed: int, before: int, after: int) -> InputError:
    between = f"{before} and {after}" if after > before else f"the start and {after}, the end"
    return InputError(
        f"{consumed} samples of a stream are to be left out, but its steps end at {between}",
        do="go on with the same number of ranks and workers and the same batch",
    )

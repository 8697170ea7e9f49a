"""Which rank reads which samples in which step: pure arithmetic over an epoch's order.

An epoch is an order of all samples (``permutation.py``). A step takes the next window of
``global_batch`` positions, and inside it rank r of W takes positions r, r+W, r+2W, ... Nothing
else is needed to say who reads what: no table of indices, no state, no communication. As the
window does not depend on W, a job that used ``consumed`` samples of an epoch goes on at that
position under any other number of ranks, and no sample is lost or read twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from hvdtrain.data.permutation import MAX_SIZE, Identity, Permutation
from hvdtrain.errors import InputError

if TYPE_CHECKING:
    from hvdtrain.data.permutation import Array

Tail = Literal["weight", "pad", "drop"]

# Positions per call of NumPy: enough to hide the call's cost, small enough for the first cache.
_BLOCK = 16384
# Below this many positions plain Python is as fast as NumPy, and needs no import of it.
_SCALAR = 32


class Order(Protocol):
    """The samples of an epoch by their position in it: ``Permutation``, ``Identity`` or another."""

    def at(self, position: int) -> int:
        """The sample at a position."""

    def take(self, positions: Array) -> Array:
        """The samples at many positions; uint64, any shape."""


class Sampling(Protocol):
    """What an epoch's order is, if not a shuffle (``sampling.py``)."""

    num_samples: int

    def order(self, epoch: int) -> Order:
        """The order of an epoch, a pure function of it, with ``num_samples`` positions."""


@dataclass(frozen=True, slots=True)
class Step:
    """One rank's share of one step.

    Attributes:
        indices: The samples that this rank reads; empty where the short last step has none left.
        global_count: Samples that all ranks together hold in this step, copies included: a sum
            over all ranks divided by it is the mean of the global batch.
        consumed: Distinct samples of the epoch that all ranks used up to the end of this step.
        copies: How many of ``global_count`` are copies that fill the last step (``tail="pad"``).
    """

    indices: tuple[int, ...]
    global_count: int
    consumed: int
    copies: int = 0


@dataclass(frozen=True)
class Partition:
    """Splits the epochs of a data set over ranks and steps.

    The number of steps is the same on all ranks by construction. What becomes of the last step,
    for which fewer than a global batch of samples are left, is ``tail``'s choice:

    * ``weight``: it uses them once; ranks get fewer samples or none, and ``Step.global_count``
      gives the real count to weight by;
    * ``pad``: it is filled up with samples from the start of the order, repeatedly if need be,
      until all ranks have equally many;
    * ``drop``: it does not take place.

    Args:
        num_samples: Samples in the data set.
        num_ranks: Ranks that share them.
        batch_size: Samples per rank and step. Give this or ``global_batch``.
        tail: See above.
        shuffle: A new order in each epoch; without it every epoch has the data set's order.
        seed: Of the order, in ``[0, 2^64)``.
        global_batch: Samples per step over all ranks. Where the ranks do not divide it, the
            first ranks hold one sample more.
        sampling: Gives the order of an epoch instead of ``shuffle`` and ``seed``. It may draw a
            sample several times; "once" then is once for each time that it is drawn.

    Raises:
        InputError: An argument is out of range, or the tail leaves no data at all.
    """

    num_samples: int
    num_ranks: int
    batch_size: int | None = None
    tail: Tail = "weight"
    shuffle: bool = True
    seed: int = 0
    global_batch: int | None = field(default=None, kw_only=True)
    sampling: Sampling | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if (self.batch_size is None) == (self.global_batch is None):
            given = "neither" if self.batch_size is None else "both"
            raise InputError(f"exactly one of batch_size and global_batch must be given, found {given}")
        _check("num_samples", self.num_samples, 0, MAX_SIZE)
        _check("num_ranks", self.num_ranks, 1, 1 << 32)
        batch_name = "global_batch" if self.batch_size is None else "batch_size"
        _check(batch_name, getattr(self, batch_name), 1, 1 << 32)
        _check("seed", self.seed, 0, (1 << 64) - 1)
        if self.sampling and self.sampling.num_samples != self.num_samples:
            drawn = self.sampling.num_samples
            raise InputError(f"the sampling is of {drawn} samples, the partition of {self.num_samples}")
        if self.tail not in get_args(Tail):
            raise InputError(f"tail is {self.tail!r}", legal=", ".join(get_args(Tail)))
        if self.tail != "weight" and self.num_steps() == 0:
            raise InputError(
                f"no data per rank: {self.num_samples} samples over {self.num_ranks} ranks make no step of "
                f"{self.step_size} with tail {self.tail!r}",
                do="lower the batch or the number of ranks, or use tail 'weight'",
            )

    @property
    def step_size(self) -> int:
        """Samples of a full step over all ranks."""
        return self.global_batch or (self.batch_size or 0) * self.num_ranks

    @property
    def num_padded(self) -> int:
        """Copies that ``pad`` adds to the last step of a whole epoch; 0 for the other tails."""
        last = self.num_samples % self.step_size
        return self._filled(last) - last

    @property
    def num_dropped(self) -> int:
        """Samples that ``drop`` leaves out of a whole epoch; 0 for the other tails."""
        return self.num_samples % self.step_size if self.tail == "drop" else 0

    def num_steps(self, consumed: int = 0) -> int:
        """Steps from ``consumed`` samples to the end of the epoch, the same on all ranks."""
        _check("consumed", consumed, 0, self.num_samples)
        left = self.num_samples - consumed
        return left // self.step_size if self.tail == "drop" else -(-left // self.step_size)

    def last_count(self, consumed: int = 0) -> int:
        """Samples of the last step of an epoch, copies included; 0 where no step is left."""
        steps = self.num_steps(consumed)
        if not steps:
            return 0
        last = (self.num_samples - consumed) % self.step_size
        return self._filled(last) if last and self.tail != "drop" else self.step_size

    def order(self, epoch: int) -> Order:
        """The order of an epoch, the same on all ranks."""
        _check("epoch", epoch, 0, (1 << 64) - 1)
        if self.sampling:
            return self.sampling.order(epoch)
        return Permutation(self.num_samples, self.seed, epoch) if self.shuffle else Identity(self.num_samples)

    def indices(self, rank: int, epoch: int, consumed: int = 0) -> Iterator[int]:
        """The samples that a rank reads from ``consumed`` to the end of the epoch, one by one."""
        for step in self.steps(rank, epoch, consumed):
            yield from step.indices

    def steps(self, rank: int, epoch: int, consumed: int = 0) -> Iterator[Step]:
        """A rank's steps from ``consumed`` to the end of the epoch.

        Args:
            rank: In ``range(num_ranks)``.
            epoch: From 0; nothing has to be called between two epochs.
            consumed: Samples of this epoch that all ranks together already used, under this or
                any other number of ranks: the ``consumed`` of the last ``Step``.

        Raises:
            InputError: An argument is out of range.
        """
        _check("rank", rank, 0, self.num_ranks - 1)
        _check("consumed", consumed, 0, self.num_samples)
        return self._steps(rank, self.order(epoch), consumed)

    def _steps(self, rank: int, order: Order, start: int) -> Iterator[Step]:
        size = self.step_size
        per_step = max(1, len(range(rank, size, self.num_ranks)))
        block = 1  # the first step comes at once, later ones in growing blocks
        while (full := (self.num_samples - start) // size) > 0:
            num_windows = min(block, full)
            for indices in self._full_windows(rank, order, start, num_windows):
                start += size
                yield Step(indices, size, start)
            block = min(block * 2, max(1, _BLOCK // per_step))
        last = self.num_samples - start
        if last and self.tail != "drop":
            filled = self._filled(last)
            positions = range(start + rank, start + filled, self.num_ranks)
            taken = take_positions(order, [position % self.num_samples for position in positions])
            yield Step(taken, filled, self.num_samples, filled - last)

    def _full_windows(
        self, rank: int, order: Order, start: int, num_windows: int
    ) -> Iterator[tuple[int, ...]]:
        size = self.step_size
        windows = range(start, start + num_windows * size, size)
        if num_windows * size <= _SCALAR * self.num_ranks:
            for window in windows:
                yield tuple(order.at(at) for at in range(window + rank, window + size, self.num_ranks))
            return
        import numpy as np

        inside = np.arange(rank, size, self.num_ranks, dtype=np.uint64)
        positions = np.arange(windows.start, windows.stop, size, dtype=np.uint64)[:, None] + inside
        for row in order.take(positions).tolist():
            yield tuple(row)

    def _filled(self, last: int) -> int:
        """Samples of a last step for which ``last`` are left, copies included."""
        if self.tail != "pad":
            return last
        return min(self.step_size, -(-last // self.num_ranks) * self.num_ranks)


def take_positions(order: Order, positions: list[int]) -> tuple[int, ...]:
    """The elements of an order at a list of positions, with NumPy only where it is faster."""
    if len(positions) <= _SCALAR:
        return tuple(order.at(position) for position in positions)
    import numpy as np

    return tuple(order.take(np.array(positions, dtype=np.uint64)).tolist())


def _check(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InputError(f"{name} is {value!r}", legal=f"an integer from {low} to {high}")

"""Cuts a step's share into passes (gradient accumulation): pure arithmetic over a ``Partition``.

A share of a full step holds at most ``ceil(step_size / ranks)`` samples. Cut into k passes, a pass
holds at most ``micro = ceil(share / k)`` of them, and a step of n samples takes
``ceil(ceil(n / ranks) / micro)`` passes: a number that every rank knows, since it follows from the
largest share. So the ranks stay together pass by pass, and a short last step takes fewer passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hvdtrain.data.partition import Partition, Step, take_positions
from hvdtrain.errors import InputError


@dataclass(frozen=True, slots=True)
class Pass:
    """One rank's share of one forward and backward pass.

    Attributes:
        step: The whole step's share of this rank.
        start: Samples of the epoch that were used before the step.
        number: Of this pass in its step, from 0.
        num_passes: Passes of the step, the same on all ranks.
        indices: The samples of ``step`` that this pass reads; empty where none are left.
        filler: Samples to read instead where there are none, for a pass of weight 0.
        places: Of ``indices`` in the epoch's order: each belongs to one sample of one rank.
    """

    step: Step
    start: int
    number: int = 0
    num_passes: int = 1
    indices: tuple[int, ...] = ()
    filler: tuple[int, ...] = ()
    places: range = range(0)

    @property
    def is_last(self) -> bool:
        """Whether the optimizer steps after this pass."""
        return self.number == self.num_passes - 1

    @property
    def consumed(self) -> int:
        """Where to resume after this pass: before the step until its last pass is done."""
        return self.step.consumed if self.is_last else self.start


@dataclass(frozen=True)
class Passes:
    """The passes of one rank.

    Args:
        partition: The steps.
        rank: In ``range(partition.num_ranks)``.
        accumulate: Passes of a full step, at most: the size of a pass is rounded up.
        fill: Name samples for a pass that has none.
        may_skip: Samples may turn out to be unreadable: name them for every pass.

    Raises:
        InputError: ``accumulate`` is no count.
    """

    partition: Partition
    rank: int
    accumulate: int = 1
    fill: bool = False
    may_skip: bool = False

    def __post_init__(self) -> None:
        check_accumulate(self.accumulate)

    @property
    def micro(self) -> int:
        """The most samples of a pass."""
        return -(-self._share(self.partition.step_size) // self.accumulate)

    def num_passes(self, global_count: int) -> int:
        """Passes of a step that holds ``global_count`` samples over all ranks."""
        return -(-self._share(global_count) // self.micro)

    def num_left(self, consumed: int = 0) -> int:
        """Passes from ``consumed`` samples to the end of the epoch, the same on all ranks."""
        steps = self.partition.num_steps(consumed)
        if not steps:
            return 0
        size = self.partition.step_size
        last = self.partition.last_count(consumed)
        return (steps - 1) * self.num_passes(size) + self.num_passes(last)

    def of_epoch(self, epoch: int, consumed: int = 0) -> Iterator[Pass]:
        """The rank's passes from ``consumed`` samples to the end of an epoch.

        Raises:
            InputError: ``rank``, ``epoch`` or ``consumed`` is out of range.
        """
        steps = self.partition.steps(self.rank, epoch, consumed)  # raises before the first pass is asked for
        return self._cut(steps, epoch, consumed)

    def _cut(self, steps: Iterator[Step], epoch: int, start: int) -> Iterator[Pass]:
        micro = self.micro
        filler: tuple[int, ...] = ()
        for step in steps:
            num_passes = self.num_passes(step.global_count)
            for number in range(num_passes):
                indices = step.indices[number * micro : (number + 1) * micro]
                needs_filler = self.fill and (self.may_skip or not indices)
                if needs_filler and not filler:
                    filler = self._filler(epoch)
                used = filler if needs_filler else ()
                yield Pass(step, start, number, num_passes, indices, used, self._places(start, number))
            start = step.consumed

    def _places(self, start: int, number: int) -> range:
        """Where a full pass lies in the epoch's order: rank r has the places r, r + W, ... of a step."""
        apart = self.partition.num_ranks
        first = start + self.rank + number * self.micro * apart
        return range(first, first + self.micro * apart, apart)

    def _filler(self, epoch: int) -> tuple[int, ...]:
        """The rank's first samples of the epoch, from the start again where there are too few."""
        partition = self.partition
        positions = range(self.rank, self.rank + self.micro * partition.num_ranks, partition.num_ranks)
        order = partition.order(epoch)
        return take_positions(order, [position % partition.num_samples for position in positions])

    def _share(self, count: int) -> int:
        """The largest share of ``count`` samples over the ranks."""
        return -(-count // self.partition.num_ranks)


def check_accumulate(accumulate: object) -> None:
    """Refuses what is no number of passes.

    Raises:
        InputError: It is none.
    """
    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
        raise InputError(f"accumulate is {accumulate!r}", legal="an integer from 1")

"""Finds ranks whose loops do not match before their gradients are mixed."""

from __future__ import annotations

from collections.abc import Callable

from hvdtrain.backends.base import Backend
from hvdtrain.errors import InputError

# Places that ranks are told apart by: the sum of their squares is exact in float32 for 70,000 ranks.
_MARKS = 16
_SHOWN = 8


class Place:
    """Where this rank is: the batches that it took in its loop, and the passes that it made in all.

    A rank that leaves a batch out, by ``continue`` or because it hides an error, would bring the
    gradients of its next batch into a step of the others, and nobody would notice until the loop ends.

    Args:
        backend: How bytes move.
        num_batches: Tells how many batches this rank took in the loop that it is in.
    """

    def __init__(self, backend: Backend, num_batches: Callable[[], int]) -> None:
        self._backend, self._num_batches = backend, num_batches
        self._num_passes = 0

    def passed(self) -> None:
        """A pass is made."""
        self._num_passes += 1

    def marks(self) -> tuple[int, int]:
        """What the ranks are to add up: a number of the place, and its square."""
        # By 3, so that a batch more does not make up for a pass less.
        mark = (self._num_batches() + 3 * self._num_passes) % _MARKS
        return mark, mark * mark

    def check(self, *, total: float, squares: float) -> None:
        """Refuses a step of ranks at different places; all of them find the same.

        Args:
            total: The sum over all ranks of the first of ``marks``.
            squares: That of the second. The variance is 0 where all are equal.

        Raises:
            InputError: With the batches and calls of the first ranks.
        """
        if self._backend.size * squares == total * total:
            return
        places = self._backend.gather((self._num_batches(), self._num_passes))
        told = [
            f"rank {rank} at batch {batch} of its loop, call {call}"
            for rank, (batch, call) in enumerate(places[:_SHOWN])
        ]
        more = " and others" if len(places) > _SHOWN else ""
        raise InputError(
            f"run.step was called for different batches: {', '.join(told)}{more}",
            do="call it once for each batch on all ranks, also on one that would rather leave a batch out",
        )

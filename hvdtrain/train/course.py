"""Where a script is in its loops over epochs, and where it goes on."""

from __future__ import annotations

from collections.abc import Iterator


class Course:
    """Counts the loops of a script over epochs, and the epochs of each.

    Attributes:
        epoch: The epoch that the script is in, from 0; None outside of a loop.
        num_epochs: Of the loop that it is in; None outside.
    """

    def __init__(self) -> None:
        self.epoch: int | None = None
        self.num_epochs: int | None = None
        self._loop, self._start = 0, (0, 0)
        self._has_passed = False

    def over(self, count: int) -> Iterator[int]:
        """The epochs of the next loop; those that were done before the script went on are left out."""
        first = self._first(count)
        self.num_epochs = count
        try:
            for epoch in range(first, count):
                self.epoch, self._has_passed = epoch, False
                yield epoch
        finally:  # also after a break
            self.epoch = self.num_epochs = None
            self._loop += 1

    def passed(self) -> None:
        """A loop over training data ended: what remains of its epoch is not done again."""
        self._has_passed = True

    def next_place(self) -> tuple[int, int]:
        """The loop and the epoch in which a script would go on from here."""
        if self.epoch is None:
            return self._loop, 0
        return self._loop, self.epoch + self._has_passed

    def go_on(self, loop: int, epoch: int) -> None:
        """Later loops begin where ``next_place`` was."""
        self._start = (loop, epoch)

    def _first(self, count: int) -> int:
        loop, epoch = self._start
        if self._loop != loop:
            return count if self._loop < loop else 0
        return epoch

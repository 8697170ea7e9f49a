"""Where a script is in its loops over epochs and over batches, and where it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hvdtrain.errors import InputError


@dataclass(eq=False)
class Loop:
    """A loop over batches, of which steps may be made.

    Attributes:
        loader: What it goes over, where its place can be saved; None for a loader of the user's own.
        began: When it did, counted in loops and batches.
        took: When it took its last batch; 0 before the first.
        has_stepped: Whether steps are made of its batches, or were before the run went on.
        saw_step: Whether a step was made while it held a batch, of whichever loop.
        is_over: Whether nothing of its epoch is left.
        around: Loops that this one stood in when it ended.
    """

    loader: object | None = None
    began: int = 0
    took: int = 0
    has_stepped: bool = False
    saw_step: bool = False
    is_over: bool = False
    around: list[Loop] = field(default_factory=list)

    @property
    def is_known(self) -> bool:
        """Whether a checkpoint holds its place."""
        return self.loader is not None


class Course:
    """Counts the loops of a script over epochs, the epochs of each, and steps.

    It is told of every loop over batches, since only those of which steps are made move the script on: one
    that looks at a batch or evaluates does not, wherever it stands.

    Attributes:
        epoch: The epoch that the script is in, from 0; None outside of a loop.
        num_epochs: Of the loop that it is in; None outside.
        num_steps: That were taken; those of several optimizers on one batch are one.
    """

    def __init__(self) -> None:
        self.epoch: int | None = None
        self.num_epochs: int | None = None
        self.num_steps = 0
        self._loop, self._start = 0, (0, 0)
        self._has_passed = self._has_looked = False
        self._time = 0
        self._open: list[Loop] = []
        # Of this epoch: those that made steps and are over.
        self._done: list[Loop] = []
        # The loop whose batch is in hand, and the optimizers that made a step of it.
        self._in_hand: Loop | None = None
        self._round: set[int] = set()

    def over(self, count: int) -> Iterator[int]:
        """The epochs of the next loop; those that were done before the script went on are left out."""
        first = self._first(count)
        self.num_epochs = count
        try:
            for epoch in range(first, count):
                self.epoch, self._has_passed, self._has_looked, self._done = epoch, False, False, []
                yield epoch
        finally:  # also after a break
            self.epoch = self.num_epochs = None
            self._loop += 1

    def enter(self, loader: object | None = None) -> Loop:
        """A loop over batches begins; one that went over the same loader before gets no more of them."""
        for other in [other for other in self._open if other.is_known and other.loader is loader]:
            self.leave(other)
        self._open.append(Loop(loader, self._tick()))
        return self._open[-1]

    def took(self, loop: Loop) -> None:
        """A loop took a batch."""
        loop.took = self._tick()
        self._in_hand = loop
        self._round.clear()

    def passed(self) -> None:
        """The batches in hand became part of a step."""
        taking = [loop for loop in self._open if loop.took]
        if not taking:
            self._has_passed |= self._has_looked  # a step of the one batch that was taken before
            return
        innermost = max(taking, key=lambda loop: loop.took)
        for loop in taking:
            # A loop of ours that took none since the innermost one began only stands around it.
            loop.has_stepped |= loop.took >= innermost.began or not loop.is_known
            loop.saw_step = True

    def stepped(self, optimizer: object) -> None:
        """A step was taken, or left out by all ranks."""
        if not self._round or id(optimizer) in self._round:
            self.num_steps += 1
            self._round.clear()
        self._round.add(id(optimizer))

    def saved(self) -> int:
        """The number of steps as which it is saved; the next step is another one, of whichever model."""
        self._round.clear()
        return self.num_steps

    def leave(self, loop: Loop) -> bool:
        """A loop over batches ended; tells whether the batch in hand was its."""
        if loop not in self._open:
            return False
        self._open.remove(loop)
        self._has_passed |= loop.is_over or loop.has_stepped
        self._has_looked |= loop.is_known and loop.took > 0
        loop.around = [other for other in self._open if other.is_known and 0 < other.took < loop.began]
        if loop.has_stepped and not self._is_part(loop):
            self._done.append(loop)
        was_in_hand = self._in_hand is loop
        if was_in_hand:
            self._in_hand = None
        return was_in_hand

    def next_place(self) -> tuple[int, int]:
        """The loop and the epoch in which a script would go on from here."""
        if self.epoch is None:
            return self._loop, 0
        return self._loop, self.epoch + (self._has_passed and not self._is_inside)

    def check_place(self, *, is_due: bool = True) -> None:
        """Refuses to save where nobody could go on.

        Args:
            is_due: Whether a save is due: a second loop over training data is refused only then.

        Raises:
            InputError: Inside a loop over a loader of the user's own, or behind a loop over training data and
                inside of another one of the same epoch.
        """
        if any(loop.has_stepped for loop in self._open if not loop.is_known):
            raise InputError(
                "run.checkpoint stands inside a loop over a loader of your own, whose place is not known",
                do="call it behind that loop, at the end of the epoch, or take the loader from run.loader",
            )
        is_behind = self.epoch is not None and not all(map(self._is_part, self._done))
        if is_due and is_behind and self._is_inside:
            raise InputError(
                "run.checkpoint stands inside a second loop over training data of one epoch: a run that goes "
                "on from there would do the first one again",
                do="call it behind the last of them, at the end of the epoch, where none is going on",
            )

    def go_on(self, loop: int, epoch: int, num_steps: int) -> None:
        """Later loops begin where ``next_place`` was, and steps are counted on."""
        self._start, self.num_steps = (loop, epoch), num_steps

    @property
    def _is_inside(self) -> bool:
        return any(loop.took for loop in self._open if loop.is_known)

    def _is_part(self, loop: Loop) -> bool:
        """Whether a loop that is over stood in a step of one that is not, which goes on behind it."""
        return any(other.has_stepped for other in loop.around if other in self._open)

    def _tick(self) -> int:
        self._time += 1
        return self._time

    def _first(self, count: int) -> int:
        loop, epoch = self._start
        if self._loop != loop:
            return count if self._loop < loop else 0
        return epoch

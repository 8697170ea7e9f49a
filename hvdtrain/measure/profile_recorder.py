"""Hears where a rank's training is, and keeps the times and norms of its steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from hvdtrain.backends.hearing import hear_whole_gradients
from hvdtrain.measure.profile_gradients import Listen, NormProbe, ReadyProbe
from hvdtrain.measure.step_clock import StepClock, timer_for

_FIRST = 2  # the first step that is sampled: one earlier the model may still be allocated
_READY_EVERY = 4  # of the sampled steps: one looks at when gradients are ready, the others at their norms


class Listener(Protocol):
    """Who hears of a rank's sections besides."""

    def enter(self, section: str) -> None:
        """Another section begins."""

    def tick(self, step: int) -> None:
        """A step is done."""

    def begin_loop(self) -> None:
        """Training or evaluation begins over its data."""

    def extend(self) -> None:
        """A save begins."""


@dataclass(frozen=True)
class Trained:
    """What trains on this rank.

    Attributes:
        parameters: All that are trained.
        device: Where they are.
        size: Number of ranks.
        reduces_inside: Whether the engine reduces inside of the backward pass, as DDP does.
        has_gradients: Whether gradients are reduced, not the optimizer's steps as with Adasum.
        loss_scale: What the loss is multiplied by now.
        listen: Lets a function hear of each gradient before it is reduced; None for hooks of our own.
    """

    parameters: list[torch.Tensor]
    device: torch.device
    size: int
    reduces_inside: bool = False
    has_gradients: bool = True
    loss_scale: Callable[[], float] = field(default=lambda: 1.0)
    listen: Listen | None = None


class ProfileRecorder:
    """One rank's record of its steps; it takes part in no collective.

    Args:
        trained: What trains.
        keep: Steps whose times are kept.
        sample_every: Steps of which one is sampled: its gradients are looked at, its times are not kept.
        listener: Who hears the same.
    """

    def __init__(
        self, trained: Trained, keep: int, sample_every: int, listener: Listener | None = None
    ) -> None:
        timer = timer_for(trained.device)
        self.clock = StepClock(timer, keep)
        self.ready = ReadyProbe(trained.parameters, timer, trained.listen)
        self.norms = NormProbe(trained.parameters, trained.size, trained.listen)
        self._trained, self._every, self.listener = trained, sample_every, listener
        self._probe: ReadyProbe | NormProbe | None = None
        self._stop_last: Callable[[], None] = lambda: None
        self._section = ""
        self.num_steps = 0

    def enter(self, section: str) -> None:
        """This rank goes on with another part of its work."""
        if self._probe and section in ("backward", "reduction") and self._section == "forward":
            self._probe.begin()
        self._section = section
        self.clock.enter(section)
        if self.listener:
            self.listener.enter(section)

    def weigh(self, weight: float, total: float | None) -> None:
        """A pass holds so many samples of this rank, its step so many of all ranks; before ``backward``."""
        if self._probe is self.norms:
            self.norms.weigh(weight, total)

    def watch(self, moment: str) -> None:
        """The step's gradients are ``reduced``, or ``clipped``."""
        if moment == "reduced" and self._trained.has_gradients:
            self.clock.enter("optimizer")
            self._end_probe()

    def tick(self, step: int) -> None:
        """A step, or a batch of an evaluation, is done."""
        if self.clock.tick(is_kept=self._probe is None):
            self._choose_probe()
        self._section = "loading"
        if self.listener:
            self.listener.tick(step)

    def begin_loop(self) -> None:
        """Training or evaluation begins over its data."""
        if self.listener:
            self.listener.begin_loop()

    def extend(self) -> None:
        """A save begins."""
        if self.listener:
            self.listener.extend()

    def close(self) -> None:
        """Takes all hooks off."""
        self.ready.cancel()
        self.norms.cancel()
        self._stop_last()

    def _end_probe(self) -> None:
        if self._probe is self.norms:
            self.norms.end(self._trained.loss_scale())
        elif self._probe is self.ready:
            self.ready.end()
            if self._trained.reduces_inside and self.ready.last is not None:
                # One hook in each step: DDP's reduction counts from the gradient on that usually comes last.
                self._stop_last()
                self._stop_last = hear_whole_gradients([self.ready.last], lambda _: self.clock.note_ready())

    def _choose_probe(self) -> None:
        """Whether the next step is sampled, and what is looked at; the same on all ranks."""
        if self._probe:
            self._probe.cancel()
        self._probe = None
        self.num_steps += 1
        sample, rest = divmod(self.num_steps + 1 - _FIRST, self._every)
        if rest == 0 and self._trained.has_gradients:
            is_ready_due = sample % _READY_EVERY == 0
            # One rank alone has no norm to compare its own with: such a step is one as any other.
            self._probe = self.ready if is_ready_due else self.norms if self._trained.size > 1 else None

"""Looks at the gradients of a sampled step: when backward makes each of them ready, and how large they are.

The hooks run when a gradient is whole and before the engine, whose own hooks come later, begins to reduce it
in place. They stand only during a sampled step: one call into Python for each parameter of each step would
show.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import fmean
from typing import Any

import torch

from hvdtrain.backends.hearing import hear_whole_gradients
from hvdtrain.measure.step_clock import Timer
from hvdtrain.scaling.profile import Gradients, ReadyGradient

Heard = Callable[[torch.Tensor], None]
Listen = Callable[[Heard], Callable[[], None]]
_KEPT = 20  # sampled steps: a training may take millions, and what is told are means
_Moment = tuple[int, Any]  # the parameter's number, and when its gradient was ready


class ReadyProbe:
    """Notes when each gradient is ready, in the last backward pass of a step.

    Args:
        parameters: All that are trained.
        timer: Of the device that computes.
        listen: Lets a function hear of each gradient, and returns what ends that.
    """

    def __init__(
        self, parameters: Sequence[torch.Tensor], timer: Timer, listen: Listen | None = None
    ) -> None:
        self._parameters, self._timer = parameters, timer
        self._listen = listen or partial(hear_whole_gradients, parameters)
        self._numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
        self._began: Any = None
        self._moments: list[_Moment] = []
        self._seen: deque[tuple[Any, list[_Moment]]] = deque(maxlen=_KEPT)
        self._end: Callable[[], None] | None = None

    def begin(self) -> None:
        """A backward pass of a sampled step begins."""
        self._end = self._end or self._listen(self._note)
        self._began, self._moments = self._timer.now(), []

    def end(self) -> None:
        """The step's gradients are reduced."""
        if self._moments:
            self._seen.append((self._began, self._moments))
        self.cancel()

    def cancel(self) -> None:
        """The step was left out, or is over."""
        if self._end:
            self._end()
        self._end, self._moments = None, []

    @property
    def last(self) -> torch.Tensor | None:
        """The parameter whose gradient came last in the step that was looked at last."""
        return self._parameters[self._seen[-1][1][-1][0]] if self._seen else None

    def gradients(self) -> Gradients:
        """What a step reduces, with the means over the last steps that were looked at."""
        times: dict[int, list[float]] = {}
        for began, moments in self._seen:
            for number, stamp in moments:
                times.setdefault(number, []).append(self._timer.between(began, stamp))
        ready = sorted((fmean(seconds), number) for number, seconds in times.items())
        return Gradients(
            len(self._parameters),
            sum(parameter.numel() for parameter in self._parameters),
            num_bytes(self._parameters),
            tuple(
                ReadyGradient(num_bytes([self._parameters[number]]), max(0.0, second))
                for second, number in ready
            ),
        )

    def _note(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:  # of one that the step does not use an engine makes zeros later
            self._moments.append((self._numbers[id(parameter)], self._timer.now()))


class NormProbe:
    """Takes the squared norms of a rank's own gradient and of the reduced one.

    Args:
        parameters: All that are trained.
        size: Number of ranks.
        listen: As ``ReadyProbe``'s.

    Attributes:
        batch: Samples of a whole step over all ranks: steps of others are left out.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], size: int, listen: Listen | None = None) -> None:
        self._parameters, self._size = parameters, size
        self._listen = listen or partial(hear_whole_gradients, parameters)
        self.batch = 0.0
        self._norms: dict[int, torch.Tensor] = {}
        self._end: Callable[[], None] | None = None
        self._weight, self._total = 0.0, 0.0
        self._is_dense = True
        self._taken: list[tuple[torch.Tensor, torch.Tensor, float]] = []

    def weigh(self, weight: float, total: float | None) -> None:
        """A pass of a sampled step holds so many samples of this rank, and its step so many of all ranks."""
        self._weight += weight
        self._total = 0.0 if total is None else total

    def begin(self) -> None:
        """A backward pass of a sampled step begins."""
        self._norms = {}  # gradients add up over the passes of a step: those of the last one count
        if self._end is None:
            self._is_dense = True
            self._end = self._listen(self._note)

    def end(self, loss_scale: float = 1.0) -> None:
        """The step's gradients are reduced, and neither clipped nor scaled.

        Args:
            loss_scale: What the ranks' own gradients are multiplied by.
        """
        # Unequal parts are weighted in the loss: a rank's gradient is not its own mean there.
        is_equal = self._weight * self._size == self._total == self.batch
        reduced = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        # One that this rank's part of the step does not use is not heard of: an engine puts it in place.
        is_dense = self._is_dense and all(gradient.layout is torch.strided for gradient in reduced)
        if is_equal and self._norms and is_dense:
            whole = _whole_norm(torch._foreach_norm(reduced))
            self._taken.append((_whole_norm(self._norms.values()), whole, loss_scale))
        self.cancel()

    def cancel(self) -> None:
        """The step was left out, or is over."""
        if self._end:
            self._end()
        self._end, self._weight, self._norms = None, 0.0, {}

    def take(self) -> tuple[int, float, float]:
        """How many steps were sampled since the last call, and the means of the squared norms over them.

        Returns:
            The number, |own gradient|^2 and |reduced gradient|^2.
        """
        taken, self._taken = self._taken, []
        if not taken:
            return 0, 0.0, 0.0
        own = fmean((float(one) / scale) ** 2 for one, _, scale in taken)
        return len(taken), own, fmean(float(whole) ** 2 for _, whole, _ in taken)

    def _note(self, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if gradient is None:
            return
        if gradient.layout is not torch.strided:
            self._is_dense = False
            return
        self._norms[id(parameter)] = torch.linalg.vector_norm(gradient)


def _whole_norm(norms: Iterable[torch.Tensor]) -> torch.Tensor:
    """The norm of all gradients together from the norm of each, of whatever type."""
    whole: torch.Tensor = torch.linalg.vector_norm(torch.stack([norm.float() for norm in norms]))
    return whole


def num_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes of some dense tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

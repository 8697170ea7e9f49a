"""The pace of all ranks while a training goes on: what each of them tells now and then, at hardly any cost.

What a rank tells travels in one small sum, begun after a step and waited for after the next one, when it has
long arrived. Every rank has its own place in it and zeros elsewhere, which add nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from hvdtrain.backends.base import Backend
from hvdtrain.measure.noise_scale import Norms
from hvdtrain.measure.profile_recorder import ProfileRecorder
from hvdtrain.measure.profile_times import Table
from hvdtrain.measure.step_clock import COLUMNS, PARTS

_LEAST_EVERY, _MOST_EVERY = 20, 1000  # steps between two sums
_ABOUT_S = 2.0  # and seconds
_MOST_ROWS = 20
_MOST_NUMBERS = 4096 * len(COLUMNS)  # of all ranks together: 230 kB
_NORMS = 3  # numbers: how many steps were sampled, and the two means


@dataclass(frozen=True)
class Told:
    """What the ranks told.

    Attributes:
        table: Times of their last steps.
        norms: The report of the steps that were sampled; empty where there is none.
    """

    table: Table
    norms: list[Norms]


class Pace:
    """Lets all ranks tell rank 0; collective.

    Args:
        backend: How bytes move.
        recorder: Of this rank, which keeps at least ``rows_for(size)`` steps.
        hear: Gets what was told; called on rank 0 only.
    """

    def __init__(self, backend: Backend, recorder: ProfileRecorder, hear: Callable[[Told], None]) -> None:
        self._backend, self._recorder, self._hear = backend, recorder, hear
        self._every = _LEAST_EVERY
        self._rows = rows_for(backend.size)
        self._since = 0
        self._answer: Callable[[], torch.Tensor] | None = None

    def stepped(self) -> None:
        """A step is done on all ranks."""
        self._collect()
        self._since += 1
        if self._since >= self._every:
            self._begin()

    def finish(self) -> None:
        """Tells what was not told yet, and waits for it."""
        self._collect()
        self._begin()
        self._collect()

    def _begin(self) -> None:
        self._since = 0
        clock = self._recorder.clock
        rows = clock.rows()[-self._rows :]
        clock.clear()
        told = np.zeros((self._backend.size, 1 + self._rows * len(COLUMNS) + _NORMS))
        mine = told[self._backend.rank]
        mine[0] = len(rows)
        mine[1 : 1 + len(rows) * len(COLUMNS)] = np.array(rows).reshape(-1)
        mine[-_NORMS:] = self._recorder.norms.take()
        self._answer = self._backend.start_sum(torch.from_numpy(told), "pace")

    def _collect(self) -> None:
        answer, self._answer = self._answer, None
        if answer is None:
            return
        told = _read(answer().numpy(), self._rows)
        if len(told.table):
            self._every = steps_between(told.table)
        if self._backend.rank == 0:
            self._hear(told)


def rows_for(size: int) -> int:
    """Steps that each of ``size`` ranks tells of at a time."""
    return max(2, min(_MOST_ROWS, _MOST_NUMBERS // (size * len(COLUMNS))))


def steps_between(table: Table) -> int:
    """Steps up to the next sum; the same on all ranks, whatever their processors.

    Args:
        table: At least one step.
    """
    parts = table[..., : len(PARTS)]
    # Rounded once. NumPy adds in another order on another processor, and a last bit that differs would let
    # ranks begin the next sum after different steps.
    step_s: float = math.fsum(parts.ravel().tolist()) / (parts.shape[0] * parts.shape[1])
    return round(min(_MOST_EVERY, max(_LEAST_EVERY, _ABOUT_S / max(step_s, 1e-9))))


def _read(told: Table, most_rows: int) -> Told:
    size = len(told)
    num_rows = int(told[:, 0].min())
    rows = told[:, 1 : 1 + most_rows * len(COLUMNS)].reshape(size, most_rows, len(COLUMNS))
    sampled, own, whole = told[:, -_NORMS:].T
    count = int(sampled[0])
    # A rank whose part of a step had another size left it out: then nothing is known of the mean.
    is_whole = bool((sampled == sampled[0]).all())
    norms = [Norms(float(own.mean()), float(whole[0]), count)] if is_whole and count else []
    return Told(rows[:, :num_rows].swapaxes(0, 1), norms)

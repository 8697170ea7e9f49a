"""Reads the samples of one step: the part of a loader that runs in its worker processes."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate, get_worker_info

from hvdtrain.data.batch import Batch, SampleError, SkipSample
from hvdtrain.data.partition import Step
from hvdtrain.data.permutation import mix_words
from hvdtrain.errors import InputError

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One step to read: in ``epoch``, after ``start`` of its samples."""

    step: Step
    epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a step could not be read.

    It is returned, not raised: PyTorch would rebuild a raised exception in the rank from one
    string that holds the whole traceback.

    Attributes:
        error: The data set's InputError, or one line about anything else that it raised.
        detail: The traceback as text.
        cause: What was raised, where rank and reader are one process.
    """

    error: InputError | str
    detail: str
    cause: Exception | None

    def raise_in_rank(self) -> NoReturn:
        """Raises the InputError as it was, and anything else as a SampleError."""
        if isinstance(self.error, InputError):
            raise self.error from self.cause
        error = SampleError(self.error)
        error.detail = self.detail
        raise error from self.cause


class StepReader(Dataset[Any]):
    """A data set of steps (``Batch`` or ``Failure``) over a map-style data set of samples.

    Python's, NumPy's and PyTorch's (CPU) global random generators are seeded before each step
    with ``mix_words(seed, epoch, start, rank)``: random augmentation depends neither on the number
    of workers, nor on which of them reads the step, nor on whether the job was resumed.

    Args:
        dataset: Samples. ``dataset.describe(index)`` names one in messages, ``dataset.collate(samples)``
            makes a batch; without it PyTorch's ``default_collate`` does.
        seed: In ``[0, 2^64)``.
        rank: The rank that reads.
        may_skip: Accept SkipSample from the data set.
    """

    def __init__(self, dataset: Dataset[Any], seed: int, rank: int, may_skip: bool = False) -> None:
        self._dataset, self._seed, self._rank, self._may_skip = dataset, seed, rank, may_skip
        self._collate: Collate = getattr(dataset, "collate", default_collate)

    def __getitem__(self, request: Request) -> Batch | Failure:
        """Reads a step; never raises what the data set raises."""
        step = request.step
        global_count = None if self._may_skip else step.global_count
        batch = Batch(None, None, 0, global_count, step.consumed, step.copies)
        if not step.indices:
            return batch
        doing = ""
        samples: list[Any] = []
        skipped: list[str] = []
        try:
            with OwnRandom(mix_words(self._seed, request.epoch, request.start, self._rank)):
                for index in step.indices:
                    doing = f"sample {index}{self._name(index)} could not be read"
                    self._read(index, samples, skipped)
                doing = f"samples {_shortened(step.indices)} make no batch"
                return _filled(batch, samples, tuple(skipped), self._collate)
        except Exception as error:  # whatever a user's data set may raise
            return _failure(error, doing, self._rank)

    def _read(self, index: int, samples: list[Any], skipped: list[str]) -> None:
        try:
            samples.append(self._dataset[index])
        except SkipSample as skip:
            if not self._may_skip:
                raise
            skipped.append(str(skip))

    def _name(self, index: int) -> str:
        describe = getattr(self._dataset, "describe", None)
        return f" ({describe(index)})" if describe else ""


def _filled(batch: Batch, samples: list[Any], skipped: tuple[str, ...], collate: Collate) -> Batch:
    """An empty batch with samples put in; a collated pair is taken for (inputs, targets)."""
    if not samples:
        return replace(batch, skipped=skipped)
    collated = collate(samples)
    pair = isinstance(collated, list | tuple) and len(collated) == 2
    inputs, targets = collated if pair else (collated, None)
    return replace(batch, inputs=inputs, targets=targets, count=len(samples), skipped=skipped)


def _failure(error: Exception, doing: str, rank: int) -> Failure:
    """What to hand to the rank instead of a batch.

    Args:
        error: What the data set raised.
        doing: What went wrong, such as ``sample 3 could not be read``.
        rank: The rank that reads.
    """
    worker = get_worker_info()
    detail = "".join(traceback.format_exception(error))
    cause = None if worker else error
    if isinstance(error, InputError):
        return Failure(error, detail, cause)
    at = traceback.extract_tb(error.__traceback__)[-1]
    reader = f"rank {rank}" + (f", loader worker {worker.id}" if worker else "")
    said = " ".join(str(error).split())
    line = f"{doing} on {reader}: {type(error).__name__}: {said} ({Path(at.filename).name}:{at.lineno})"
    return Failure(line, detail, cause)


class OwnRandom:
    """A context in which the global random generators have a course of their own.

    They are seeded when it is entered and have the surrounding program's state outside of it: the
    model's dropout does not depend on the loader. CUDA's generators are left alone.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __enter__(self) -> None:
        self._outer = _states()
        random.seed(self._seed)
        # High word first: low word first is what random.seed does, and both would draw the same numbers.
        np.random.seed([self._seed >> 32, self._seed & 0xFFFFFFFF])
        torch.default_generator.manual_seed(self._seed)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _set_states(self._outer)


_States = tuple[Any, Any, torch.Tensor]


def _states() -> _States:
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state()


def _set_states(states: _States) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.default_generator.set_state(states[2])


def _shortened(indices: Sequence[int]) -> str:
    shown = ", ".join(map(str, indices[:4]))
    return shown if len(indices) <= 4 else f"{shown}, ... ({len(indices)} of them)"

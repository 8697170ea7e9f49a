"""Reads the samples of one pass: the part of a loader that runs in its worker processes."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from torch.utils.data import Dataset, TensorDataset, default_collate, get_worker_info

from hvdtrain.data.batch import Batch, SampleError, SkipSample
from hvdtrain.data.passes import Pass
from hvdtrain.data.permutation import mix_words
from hvdtrain.data.randomness import OwnRandom, seed_generators
from hvdtrain.errors import InputError

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One pass to read, in ``epoch``."""

    part: Pass
    epoch: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a pass could not be read.

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


class PassReader(Dataset[Any]):
    """A data set of passes (``Batch`` or ``Failure``) over a map-style data set of samples.

    Python's, NumPy's and PyTorch's (CPU) global random generators are seeded before each sample with
    ``mix_words(seed, epoch, place in the epoch's order)``: random augmentation depends neither on how many
    ranks and workers there are, nor on which of them reads the sample, nor on whether the job was resumed.
    A data set that says ``draws = False``, and PyTorch's TensorDataset, is spared that. ``collate`` goes on
    with the numbers of the last sample.

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
        self._draws = bool(getattr(dataset, "draws", type(dataset) is not TensorDataset))

    def __getitem__(self, request: Request) -> Batch | Failure:
        """Reads a pass; never raises what the data set raises."""
        part, step = request.part, request.part.step
        batch = Batch(
            None,
            None,
            0,
            None if self._may_skip else step.global_count,
            part.consumed,
            step.copies,
            number=part.number,
            num_passes=part.num_passes,
        )
        if not part.indices and not part.filler:
            return batch
        doing = _Doing()
        try:
            with OwnRandom(mix_words(self._seed, request.epoch, part.start, self._rank, part.number)):
                return self._filled(batch, part, request.epoch, doing)
        except Exception as error:  # whatever a user's data set may raise
            return make_failure(error, doing.text, self._rank)

    def _filled(self, batch: Batch, part: Pass, epoch: int, doing: _Doing) -> Batch:
        """An empty batch with the samples of a pass, or those that fill it with weight 0."""
        skipped: list[str] = []
        seeds = [mix_words(self._seed, epoch, place) for place in part.places] if self._draws else []
        samples = self._samples(part.indices, seeds, skipped, doing)
        count, read = len(samples), part.indices
        if not samples and part.filler:
            samples, read = self._samples(part.filler, seeds, [], doing), part.filler
        if not samples:
            return replace(batch, skipped=tuple(skipped))
        doing.text = f"samples {_shortened(read)} make no batch"
        inputs, targets = split_pair(self._collate(samples))
        return replace(batch, inputs=inputs, targets=targets, count=count, skipped=tuple(skipped))

    def _samples(
        self, indices: Sequence[int], seeds: Sequence[int], skipped: list[str], doing: _Doing
    ) -> list[Any]:
        samples: list[Any] = []
        for number, index in enumerate(indices):
            doing.text = f"sample {index}{self._name(index)} could not be read"
            if seeds:
                seed_generators(seeds[number])
            self._read(index, samples, skipped)
        return samples

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


@dataclass(slots=True)
class _Doing:
    """What the reader is about, for the message if it fails."""

    text: str = ""


def split_pair(collated: Any) -> tuple[Any, Any]:
    """A collated batch as (inputs, targets); what is no pair has no targets."""
    if isinstance(collated, list | tuple) and len(collated) == 2:
        return collated[0], collated[1]
    return collated, None


def make_failure(error: Exception, doing: str, rank: int) -> Failure:
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


def _shortened(indices: Sequence[int]) -> str:
    shown = ", ".join(map(str, indices[:4]))
    return shown if len(indices) <= 4 else f"{shown}, ... ({len(indices)} of them)"

"""Orders of an epoch that are no plain shuffle: by weight, by class, by length.

Each is a pure function of seed and epoch, the same on every rank and under every number of ranks,
and any place in it is reached at once: ``Partition`` splits and resumes it like a permutation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hvdtrain.config import SamplingConfig
from hvdtrain.data.partition import Sampling
from hvdtrain.data.permutation import Permutation, mix64, mix_words
from hvdtrain.errors import InputError

Array = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, odd: no two numbers meet
_WINDOW = 50  # groups of similar length that are sorted together
# Which of a sampling's several random numbers of an epoch: the place in a stratum, the groups' order.
_PLACES, _GROUPS = 1, 2


def build_sampling(config: SamplingConfig, dataset: Any, seed: int, step_size: int) -> Sampling | None:
    """The sampling of a job; None for the plain shuffle.

    Args:
        config: The section ``data.sampling``.
        dataset: Training data; has the attribute ``targets``, ``weights`` or ``lengths``, one number
            for each sample, for ``balanced``, ``weighted`` and ``length``.
        seed: In ``[0, 2^64)``.
        step_size: Samples of a step over all ranks.

    Raises:
        InputError: The data set does not tell what is needed, or tells something useless.
    """
    if config.name == "uniform":
        return None
    attribute = {"balanced": "targets", "weighted": "weights", "length": "lengths"}[config.name]
    told = getattr(dataset, attribute, None)
    if told is None:
        raise InputError(
            f"the training data set ({type(dataset).__name__}) tells no {attribute}",
            where="data.sampling",
            legal=f"a data set with the attribute {attribute}: one number for each sample",
        )
    if len(told) != len(dataset):
        raise InputError(
            f"the training data set tells {len(told)} {attribute} for {len(dataset)} samples",
            where="data.sampling",
        )
    if config.name == "balanced":
        return Weighted.by_class(told, seed)
    return (
        Weighted(told, seed)
        if config.name == "weighted"
        else LengthGrouped(told, seed, config.group or step_size)
    )


class Weighted:
    """Draws as many samples as there are, with replacement, each in proportion to its weight.

    The draw is stratified: of an epoch's n draws the i-th, in a shuffled order, takes the sample at
    ``(i + u) / n`` of the cumulated weights, u being uniform in (0, 1). So a sample of weight w is
    drawn ``n w / sum(w)`` times on average, as by independent draws, but in every epoch less than
    two times more or fewer, and with equal weights exactly once.

    Args:
        weights: One for each sample; 0 leaves it out.
        seed: In ``[0, 2^64)``.
        order: The samples in the order in which their weights are cumulated: neighbours share
            draws. The data set's order if left out.

    Raises:
        InputError: A weight is negative or no finite number, or all are 0.
    """

    def __init__(
        self, weights: npt.ArrayLike, seed: int, *, order: npt.NDArray[np.int64] | None = None
    ) -> None:
        checked = _numbers(weights, "weights")
        if (checked < 0).any():
            sample = int(np.argmax(checked < 0))
            raise _wrong(f"weight {checked[sample]:g} of sample {sample} is negative", "numbers from 0")
        total = float(checked.sum())
        if total == 0:
            what = "all weights are 0" if len(checked) else "there are no weights"
            raise _wrong(what, "at least one above 0")
        self.num_samples, self._seed = len(checked), seed
        self._samples = np.flatnonzero(checked) if order is None else order[checked[order] > 0]
        # In strata; cumulated as differences from their mean, which keeps equal weights exact
        widths = checked[self._samples] * (self.num_samples / total)
        mean = self.num_samples / len(widths)
        self._ends = np.cumsum(widths - mean) + np.arange(1, len(widths) + 1) * mean

    @classmethod
    def by_class(cls, targets: npt.ArrayLike, seed: int) -> Weighted:
        """Draws each class that occurs equally often, in every epoch up to one or two draws.

        Args:
            targets: The class of each sample.
            seed: In ``[0, 2^64)``.

        Raises:
            InputError: The targets are no whole numbers.
        """
        numbers = np.asarray(targets)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iub":
            raise _wrong(f"targets are {_kind(numbers)}", "one whole number for each sample")
        _, places, counts = np.unique(numbers, return_inverse=True, return_counts=True)
        return cls(1 / counts[places], seed, order=np.argsort(numbers, kind="stable"))

    def order(self, epoch: int) -> WeightedOrder:
        """The draws of an epoch."""
        return WeightedOrder(self._samples, self._ends, self.num_samples, mix_words(self._seed, epoch))


class WeightedOrder:
    """The draws of one epoch, with the interface of ``Permutation``."""

    def __init__(
        self, samples: npt.NDArray[np.int64], ends: npt.NDArray[np.float64], size: int, key: int
    ) -> None:
        self.size = size
        self._samples, self._ends = samples, ends
        self._strata = Permutation(size, key, 0)
        self._key = mix_words(key, _PLACES)

    def at(self, position: int) -> int:
        """The sample at ``position``, the same as ``take`` gives."""
        stratum = self._strata.at(position)
        word = mix64((stratum * _GOLDEN + mix64(self._key)) & _MASK)
        place = stratum + ((word >> 32) + 0.5) / 2**32
        found = int(np.searchsorted(self._ends, place, side="right"))
        return int(self._samples[min(found, len(self._samples) - 1)])

    def take(self, positions: Array) -> Array:
        """The samples at many positions; uint64, any shape."""
        strata = self._strata.take(positions)
        places = (_words(self._key, strata) >> np.uint64(32)) + 0.5
        found = np.searchsorted(self._ends, strata + places / 2**32, side="right")
        # rounding may leave the last end a trifle short
        return self._samples[np.minimum(found, len(self._samples) - 1)].astype(np.uint64)


class LengthGrouped:
    """Each sample once per epoch, with samples of similar length next to each other.

    The shuffled samples are taken 50 groups at a time, sorted by length and cut into groups, and the
    groups are shuffled. Where a group is a step, its samples have similar lengths on all ranks, and
    as they lie in order inside it, the total lengths of two ranks with equally many samples differ by
    no more than its longest and shortest sample; every other group on average runs downwards, so
    that no rank has the shorter ones always.

    A job that goes on inside an epoch needs the same ``group``.

    Args:
        lengths: One for each sample.
        seed: In ``[0, 2^64)``.
        group: Samples of a group: those of a step over all ranks.

    Raises:
        InputError: A length is negative or no finite number, or ``group`` is no count.
    """

    def __init__(self, lengths: npt.ArrayLike, seed: int, group: int) -> None:
        self._lengths = _numbers(lengths, "lengths")
        if (self._lengths < 0).any():
            sample = int(np.argmax(self._lengths < 0))
            raise _wrong(f"length {self._lengths[sample]:g} of sample {sample} is negative", "numbers from 0")
        if group < 1:
            raise _wrong(f"group is {group}", "an integer from 1")
        self.num_samples, self.group, self._seed = len(self._lengths), group, seed

    def order(self, epoch: int) -> LengthOrder:
        """The order of an epoch."""
        return LengthOrder(self._lengths, self.group, mix_words(self._seed, epoch))


class LengthOrder:
    """The order of one epoch, with the interface of ``Permutation``."""

    def __init__(self, lengths: npt.NDArray[np.float64], group: int, key: int) -> None:
        self.size = len(lengths)
        self._lengths, self._group, self._key = lengths, group, key
        self._shuffled = Permutation(self.size, key, 0)
        self._window = (-1, np.empty(0, dtype=np.uint64))

    def at(self, position: int) -> int:
        """The sample at ``position``."""
        if not 0 <= position < self.size:
            raise IndexError(f"position {position} is outside of range({self.size})")
        number, place = divmod(position, self._group * _WINDOW)
        return int(self._of_window(number)[place])

    def take(self, positions: Array) -> Array:
        """The samples at many positions; uint64, any shape."""
        numbers, places = np.divmod(positions, np.uint64(self._group * _WINDOW))
        taken = np.empty_like(positions)
        for number in np.unique(numbers):
            inside = numbers == number
            taken[inside] = self._of_window(int(number))[places[inside]]
        return taken

    def _of_window(self, number: int) -> Array:
        """The samples of a window in order; the newest window is kept."""
        if self._window[0] != number:
            self._window = (number, self._arranged(number))
        return self._window[1]

    def _arranged(self, number: int) -> Array:
        start = number * self._group * _WINDOW
        stop = min(self.size, start + self._group * _WINDOW)
        samples = self._shuffled.take(np.arange(start, stop, dtype=np.uint64))
        samples = samples[np.argsort(self._lengths[samples], kind="stable")]
        num_full, rest = divmod(len(samples), self._group)
        key = mix_words(self._key, _GROUPS, number)
        # The short group comes last, as steps do; its samples are of any length, not always the longest.
        cut = self._group * (key % (num_full + 1))
        groups = np.concatenate([samples[:cut], samples[cut + rest :]]).reshape(num_full, self._group)
        groups = groups[Permutation(num_full, key, 0).take(np.arange(num_full, dtype=np.uint64))]
        down = (_words(key, np.arange(num_full, dtype=np.uint64)) >> np.uint64(63)) == 1
        groups[down] = groups[down, ::-1]
        return np.concatenate([groups.ravel(), samples[cut : cut + rest]])


def _words(key: int, numbers: Array) -> Array:
    """A random 64-bit word for each number: ``mix64`` of it and a key, with NumPy."""
    word = numbers * np.uint64(_GOLDEN) + np.uint64(mix64(key))
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def _numbers(values: npt.ArrayLike, name: str) -> npt.NDArray[np.float64]:
    given = np.asarray(values)
    if given.ndim != 1 or given.dtype.kind not in "iufb":
        raise _wrong(f"{name} are {_kind(given)}", "one number for each sample")
    numbers = given.astype(np.float64)
    if not np.isfinite(numbers).all():
        sample = int(np.argmin(np.isfinite(numbers)))
        raise _wrong(f"{name[:-1]} of sample {sample} is {numbers[sample]}", "finite numbers")
    return numbers


def _kind(values: npt.NDArray[Any]) -> str:
    return f"an array of shape {values.shape} and type {values.dtype}"


def _wrong(what: str, legal: str) -> InputError:
    return InputError(what, where="data.sampling", legal=legal)

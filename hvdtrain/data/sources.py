"""From the job file's ``data`` section to a training and a validation data set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from hvdtrain.config import DataConfig, DigitsData, FactoryData, FolderData, SyntheticData, TarData
from hvdtrain.data.batch import SkipSample
from hvdtrain.data.factory import call_factory, import_factory
from hvdtrain.data.partition import Step
from hvdtrain.data.passes import Pass
from hvdtrain.data.reading import Failure, PassReader, Request
from hvdtrain.data.scan import Listing, scan_folder
from hvdtrain.data.tarindex import TarListing, list_shards
from hvdtrain.errors import InputError

_SEEDS = (0, 1)  # of synthetic training and validation samples


@dataclass(frozen=True)
class Source:
    """The data of a job.

    Attributes:
        train, validation: Map-style data sets of ``(input, target)`` samples.
        num_classes: None where a factory does not tell.
        sample: The input of the first training sample that can be read, as a loader would give it but
            without the batch dimension; None where it is no tensor.
        notes: What the user should be told once: what is held out or ignored, with counts.
        may_skip: Samples may be left out while reading: ranks must add up their counts.
    """

    train: Dataset[Any]
    validation: Dataset[Any]
    num_classes: int | None
    sample: torch.Tensor | None
    notes: tuple[str, ...] = ()
    may_skip: bool = False

    @property
    def sample_shape(self) -> tuple[int, ...] | None:
        """Shape of one input; None where it is no tensor."""
        return None if self.sample is None else tuple(self.sample.shape)


def build_source(config: DataConfig, listing: Listing | TarListing | None = None) -> Source:
    """Builds the data sets that a job names.

    Args:
        config: The job file's ``data`` section.
        listing: What ``list_source`` found, where another rank looked the files up already.

    Raises:
        InputError: The data cannot be found or read, or a factory's samples are no pairs.
        SampleError: A factory's data set failed to give its first sample.
    """
    if isinstance(config, DigitsData):
        return _digits()
    if isinstance(config, FolderData):
        return _folder(config, listing if isinstance(listing, Listing) else scan_folder(config))
    if isinstance(config, TarData):
        return _tar(config, listing if isinstance(listing, TarListing) else list_shards(config))
    if isinstance(config, SyntheticData):
        return _synthetic(config)
    return _from_factory(config)


def _digits() -> Source:
    from hvdtrain.data.digits import digits  # scikit-learn takes a second to import

    train, validation = digits()
    return Source(train, validation, 10, train[0][0].clone())  # no view: a model may work in place


def _folder(config: FolderData, listing: Listing) -> Source:
    with _pillow():
        from hvdtrain.data.folder import FolderDataset
    skip = config.unreadable == "skip"
    train, validation = (
        FolderDataset(images, config.image_size, config.channels, skip)
        for images in (listing.train, listing.validation)
    )
    sample = _first_image(train, "data.path")
    return Source(train, validation, len(listing.classes), sample, listing.notes, skip)


def _tar(config: TarData, listing: TarListing) -> Source:
    with _pillow():
        from hvdtrain.data.images import ImageReader
        from hvdtrain.data.tar import TarDataset
    skip = config.unreadable == "skip"
    train, validation = (
        TarDataset(samples, ImageReader(config.image_size, config.channels, skip, f"data.{part}"))
        for part, samples in (("train", listing.train), ("validation", listing.validation))
    )
    sample = _first_image(train, "data.train")
    return Source(train, validation, config.classes, sample, listing.notes, skip)


@contextmanager
def _pillow() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise InputError(f"reading images needs Pillow: {error}", do="pip install Pillow") from None


def _first_image(images: Dataset[tuple[torch.Tensor, int]], where: str) -> torch.Tensor:
    """The first image that is not to be skipped."""
    count = len(images)  # type: ignore[arg-type]  # both kinds have a length
    for index in range(count):
        try:
            return images[index][0]
        except SkipSample:
            continue
    raise InputError(f"none of the {count} training images can be read", where=where)


def _synthetic(config: SyntheticData) -> Source:
    from hvdtrain.data.synthetic import SyntheticDataset

    train, validation = (
        SyntheticDataset(config.shape, config.classes, samples, seed)
        for samples, seed in zip((config.samples, config.validation_samples), _SEEDS, strict=True)
    )
    return Source(train, validation, config.classes, train[0][0])


def _from_factory(config: FactoryData) -> Source:
    spec = config.source
    factory = import_factory(spec, where="data.source")
    made = call_factory(factory, config.args, spec=spec, where="data.args")
    if isinstance(made, tuple | list) and len(made) == 2:
        train, validation = made
    elif hasattr(made, "train") and hasattr(made, "validation"):
        train, validation = made.train, made.validation
    else:
        raise InputError(
            f"{spec} returned {_kind(made)}",
            where="data.source",
            legal="a pair (train, validation) of data sets, or an object with these attributes",
        )
    for name, dataset in (("train", train), ("validation", validation)):
        _check_map_style(dataset, f"{spec}: the {name} data set")
    num_classes = getattr(made, "num_classes", None) or getattr(train, "num_classes", None)
    num_classes = num_classes or len(getattr(train, "classes", ())) or None
    return Source(train, validation, num_classes, _first_input(train, spec))


def _check_map_style(dataset: Any, name: str) -> None:
    legal = "a data set with len() and [index]"
    if isinstance(dataset, IterableDataset):
        raise InputError(f"{name} is an IterableDataset", where="data.source", legal=legal)
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")) or isinstance(
        dataset, str | dict
    ):
        raise InputError(f"{name} is {_kind(dataset)}", where="data.source", legal=legal)
    if len(dataset) == 0:
        raise InputError(f"{name} is empty", where="data.source")


def _first_input(dataset: Dataset[Any], spec: str) -> torch.Tensor | None:
    """The input of the first sample, read once and as a loader would read it."""
    checked = _Checked(dataset, f"{spec}: sample 0 of the train data set")
    first = Pass(Step((0,), 1, 1), 0, indices=(0,), places=range(1))
    item = PassReader(checked, seed=0, rank=0)[Request(first, epoch=0)]
    if isinstance(item, Failure):
        item.raise_in_rank()
    if item.targets is None:
        raise InputError(
            f"{spec}: collate of the train data set returned {_kind(item.inputs)}",
            where="data.source",
            legal="an (inputs, targets) pair",
        )
    is_stacked = isinstance(item.inputs, torch.Tensor) and len(item.inputs.shape) > 0
    return item.inputs[0] if is_stacked else None


class _Checked(Dataset[Any]):
    """A data set whose samples are checked for being pairs, unless it makes its batches itself."""

    def __init__(self, dataset: Dataset[Any], name: str) -> None:
        self._dataset, self._name = dataset, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __getitem__(self, index: int) -> Any:
        item = self._dataset[index]
        if hasattr(self._dataset, "collate"):
            return item
        if not (isinstance(item, tuple | list) and len(item) == 2):
            raise self._wrong(f"is {_kind(item)}")
        for part, value in zip(("input", "target"), item, strict=True):
            if not _is_stackable(value):
                raise self._wrong(f"has {_kind(value)} as its {part}")
        return item

    def _wrong(self, what: str) -> InputError:
        legal = "an (input, target) pair of tensors, arrays or numbers"
        return InputError(f"{self._name} {what}", where="data.source", legal=legal)


def _is_stackable(value: Any) -> bool:
    """Whether PyTorch's default_collate makes a tensor of values like this one."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biufc"
    return isinstance(value, torch.Tensor | int | float)


def _kind(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"an object of type {type(value).__name__}"

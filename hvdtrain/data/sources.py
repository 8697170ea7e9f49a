"""From the job file's ``data`` section to a training and a validation data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from hvdtrain.config import DigitsData, FactoryData, FolderData, SyntheticData
from hvdtrain.data.factory import call_factory, import_factory
from hvdtrain.data.partition import Step
from hvdtrain.data.reading import Failure, Request, StepReader
from hvdtrain.data.scan import Listing, scan_folder
from hvdtrain.errors import InputError

_SEEDS = (0, 1)  # of synthetic training and validation samples


@dataclass(frozen=True)
class Source:
    """The data of a job.

    Attributes:
        train, validation: Map-style data sets of ``(input, target)`` samples.
        num_classes: None where a factory does not tell.
        sample_shape: Shape of one input; None where it is no tensor.
        class_names: By class number; empty where they have no names.
        notes: What the user should be told once: what is held out or ignored, with counts.
        may_skip: Samples may be left out while reading: ranks must add up their counts.
    """

    train: Dataset[Any]
    validation: Dataset[Any]
    num_classes: int | None
    sample_shape: tuple[int, ...] | None
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    may_skip: bool = False


def build_source(
    config: DigitsData | FolderData | SyntheticData | FactoryData, listing: Listing | None = None
) -> Source:
    """Builds the data sets that a job names.

    Args:
        config: The job file's ``data`` section.
        listing: What ``scan_folder`` found, where another rank scanned the folder already.

    Raises:
        InputError: The data cannot be found or read.
        SampleError: A factory's data set failed to give its first sample.
    """
    if isinstance(config, DigitsData):
        return _digits()
    if isinstance(config, FolderData):
        return _folder(config, listing or scan_folder(config))
    if isinstance(config, SyntheticData):
        return _synthetic(config)
    return _from_factory(config)


def _digits() -> Source:
    from hvdtrain.data.digits import digits  # scikit-learn takes a second to import

    train, validation = digits()
    return Source(train, validation, 10, (1, 8, 8), tuple("0123456789"))


def _folder(config: FolderData, listing: Listing) -> Source:
    try:
        from hvdtrain.data.folder import FolderDataset
    except ImportError as error:
        raise InputError(f"reading images needs Pillow: {error}", do="pip install Pillow") from None
    skip = config.unreadable == "skip"
    train, validation = (
        FolderDataset(images, config.image_size, config.channels, skip)
        for images in (listing.train, listing.validation)
    )
    shape = (config.channels, config.image_size, config.image_size)
    return Source(train, validation, len(listing.classes), shape, listing.classes, listing.notes, skip)


def _synthetic(config: SyntheticData) -> Source:
    from hvdtrain.data.synthetic import SyntheticDataset

    train, validation = (
        SyntheticDataset(config.shape, config.classes, samples, seed)
        for samples, seed in zip((config.samples, config.validation_samples), _SEEDS, strict=True)
    )
    return Source(train, validation, config.classes, config.shape)


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
    names = tuple(map(str, getattr(train, "classes", ())))
    num_classes = getattr(made, "num_classes", None) or getattr(train, "num_classes", None)
    return Source(train, validation, num_classes or len(names) or None, _first_shape(train), names)


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


def _first_shape(dataset: Dataset[Any]) -> tuple[int, ...] | None:
    """The shape of one input, from the first sample, read as a loader would read it."""
    item = StepReader(dataset, seed=0, rank=0)[Request(Step((0,), 1, 1), epoch=0, start=0)]
    if isinstance(item, Failure):
        item.raise_in_rank()
    return tuple(item.inputs.shape[1:]) if isinstance(item.inputs, torch.Tensor) else None


def _kind(value: Any) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"

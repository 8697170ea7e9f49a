"""The section ``data`` of a job file: where the samples come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from hvdtrain.config.section import Choice, Section
from hvdtrain.config.values import (
    Arguments,
    Channels,
    Count,
    Factory,
    FilePath,
    FolderName,
    Integer,
    Pixels,
    Workers,
)


class SamplingConfig(Choice):
    """Which samples an epoch draws, and which of them meet in a step."""

    _users: ClassVar[Mapping[str, frozenset[str]]] = {"group": frozenset({"length"})}

    name: Literal["uniform", "balanced", "weighted", "length"] = Field(
        "uniform",
        description="uniform: each sample once; balanced: each class equally often; weighted: by the weights "
        "of the data set; length: each once, samples of similar length together",
    )
    group: Count | None = Field(
        None, description="samples of similar length that stay together; the global batch if left out"
    )


class DigitsData(Section):
    """scikit-learn's 1,797 images of 8x8 pixels, a fixed fifth of them held out."""

    source: Literal["digits"]
    workers: Workers = Field(0, description="loader processes per rank; 0 loads in the rank itself")


class FolderData(Section):
    """A folder with one sub-folder of images per class, below ``train`` and ``validation``.

    Where ``path`` holds the class folders itself, a fixed fifth of each class is held out.
    """

    source: Literal["folder"]
    path: FilePath
    train: FolderName = Field("train", description="sub-folder of the training images")
    validation: FolderName = Field("validation", description="sub-folder of the validation images")
    image_size: Pixels = Field(224, description="side of the square that images are resized to, pixels")
    channels: Channels = Field(3, description="3: RGB, 1: grey")
    unreadable: Literal["skip", "refuse"] = Field("refuse", description="what an unreadable image leads to")
    sampling: SamplingConfig = SamplingConfig()
    workers: Workers = 2


class TarData(Section):
    """Tar shards of images: the members of a sample have one name, such as ``12.jpg`` and ``12.cls``."""

    source: Literal["tar"]
    train: FilePath = Field(description="shards of the training images, such as photos-{000..007}.tar")
    validation: FilePath = Field(description="shards of the held-out images")
    classes: Annotated[Integer, Field(ge=2, le=10_000_000)]
    image_size: Pixels = Field(224, description="side of the square that images are resized to, pixels")
    channels: Channels = Field(3, description="3: RGB, 1: grey")
    unreadable: Literal["skip", "refuse"] = Field("refuse", description="what an unreadable image leads to")
    sampling: SamplingConfig = SamplingConfig()
    workers: Workers = 2


class SyntheticData(Section):
    """Images of noise around a pattern per class: for tests of speed, learnable on purpose."""

    source: Literal["synthetic"]
    shape: Annotated[tuple[Pixels, Pixels, Pixels], Field(description="channels, height, width")] = (
        3,
        224,
        224,
    )
    classes: Annotated[Integer, Field(ge=2, le=10_000_000)] = 1000
    samples: Count = 1280
    validation_samples: Count = 256
    workers: Workers = 0


class FactoryData(Section):
    """A function of the user's that returns the training and validation datasets."""

    source: Factory
    args: Arguments = Field(default_factory=dict)
    sampling: SamplingConfig = SamplingConfig()
    workers: Workers = 0


def _data_kind(value: Any) -> str | None:
    source = value.get("source") if isinstance(value, dict) else getattr(value, "source", None)
    if source in ("digits", "folder", "synthetic", "tar"):
        return str(source)
    return "factory" if isinstance(source, str) and ":" in source else None


DataConfig = Annotated[
    Annotated[DigitsData, Tag("digits")]
    | Annotated[FolderData, Tag("folder")]
    | Annotated[TarData, Tag("tar")]
    | Annotated[SyntheticData, Tag("synthetic")]
    | Annotated[FactoryData, Tag("factory")],
    Discriminator(
        _data_kind,
        custom_error_type="data_source",
        custom_error_message="data.source must be digits, folder, tar, synthetic or package.module:factory",
    ),
]

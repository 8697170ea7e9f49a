"""The section ``data`` of a job file: where the samples come from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from hvdtrain.config.section import Section
from hvdtrain.config.values import Arguments, Channels, Count, Factory, FilePath, Integer, Natural


class DigitsData(Section):
    """scikit-learn's 1,797 images of 8x8 pixels, a fixed fifth of them held out."""

    source: Literal["digits"]
    workers: Natural = Field(0, description="loader processes per rank; 0 loads in the rank itself")


class FolderData(Section):
    """A folder with one sub-folder of images per class, below ``train`` and ``validation``.

    Where ``path`` holds the class folders itself, a fixed fifth of each class is held out.
    """

    source: Literal["folder"]
    path: FilePath
    train: str = Field("train", description="sub-folder of the training images")
    validation: str = Field("validation", description="sub-folder of the validation images")
    image_size: Count = Field(224, description="side of the square that images are resized to, pixels")
    channels: Channels = Field(3, description="3: RGB, 1: grey")
    unreadable: Literal["skip", "refuse"] = Field("refuse", description="what an unreadable image leads to")
    workers: Natural = 2


class SyntheticData(Section):
    """Images of noise around a pattern per class: for tests of speed, learnable on purpose."""

    source: Literal["synthetic"]
    shape: Annotated[tuple[Count, Count, Count], Field(description="channels, height, width")] = (3, 224, 224)
    classes: Annotated[Integer, Field(ge=2)] = 1000
    samples: Count = 1280
    validation_samples: Count = 256
    workers: Natural = 0


class FactoryData(Section):
    """A function of the user's that returns the training and validation datasets."""

    source: Factory
    args: Arguments = Field(default_factory=dict)
    workers: Natural = 0


def _data_kind(value: Any) -> str | None:
    source = value.get("source") if isinstance(value, dict) else getattr(value, "source", None)
    if source in ("digits", "folder", "synthetic"):
        return str(source)
    return "factory" if isinstance(source, str) and ":" in source else None


DataConfig = Annotated[
    Annotated[DigitsData, Tag("digits")]
    | Annotated[FolderData, Tag("folder")]
    | Annotated[SyntheticData, Tag("synthetic")]
    | Annotated[FactoryData, Tag("factory")],
    Discriminator(
        _data_kind,
        custom_error_type="data_source",
        custom_error_message="data.source must be digits, folder, synthetic or package.module:factory",
    ),
]

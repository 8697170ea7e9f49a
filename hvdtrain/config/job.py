"""The job file: one YAML document that describes one training.

``load_job`` turns a file and ``--set`` overrides into a frozen ``Job`` or raises an
``InputError`` that names the file, the line, the value and what would be legal. The
defaults stand in the models below and in ``digits.yaml``, the job that runs without a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from hvdtrain.config.values import (
    FACTORY_PATTERN,
    Arguments,
    Channels,
    Count,
    Factory,
    FilePath,
    Flag,
    Fraction,
    Integer,
    Natural,
    NonNegative,
    OrText,
    Positive,
    Share,
)

# A text in place of one of these sections is short for a section with this one key.
SHORT_FORMS: Mapping[str, str] = {"model": "name", "data": "source"}


class Section(BaseModel):
    """Base of all parts of a job: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Choice(Section):
    """A section whose ``name`` decides which of its other keys are used; those that are not are errors."""

    # Key -> the names that use it; a key that is not here is used by all of them.
    _users: ClassVar[Mapping[str, frozenset[str]]] = {}

    name: str

    def unused(self) -> list[str]:
        """The keys that are without effect."""
        return sorted(key for key, names in self._users.items() if self.name not in names)

    @model_validator(mode="after")
    def _nothing_unused(self) -> Self:
        if wrong := [key for key in self.unused() if key in self.model_fields_set]:
            raise ValueError(f"{wrong[0]} is not used by {self.name}")
        return self


class ModelConfig(Section):
    """Which model: a name of ours, ``torchvision:NAME`` or ``package.module:factory``."""

    name: Annotated[str, Field(min_length=1)]
    args: Arguments = Field(default_factory=dict, description="keyword arguments of the factory")


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


class BatchConfig(Section):
    """How many samples make a step: of all ranks together, or of each."""

    global_: Count | None = Field(None, alias="global", description="samples per step over all ranks")
    per_rank: Count | None = Field(None, description="samples per step on each rank")
    uneven: Literal["refuse", "split"] = Field(
        "refuse",
        description="a global batch that the ranks do not divide: refuse, or ranks differ by one sample",
    )
    tail: Literal["weight", "pad", "drop"] = Field(
        "weight",
        description="the short last step: weighted by real counts, filled with copies, or dropped",
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> BatchConfig:
        if (self.global_ is None) == (self.per_rank is None):
            found = "both" if self.global_ is not None else "neither"
            raise ValueError(f"exactly one of global and per_rank must be given, found {found}")
        return self


class OptimizerConfig(Choice):
    """The optimizer; ``lr`` is used as it stands, whatever the number of ranks."""

    _users = {
        "momentum": frozenset({"sgd"}),
        "nesterov": frozenset({"sgd"}),
        "betas": frozenset({"adam", "adamw"}),
    }

    name: Literal["sgd", "adam", "adamw"] = "adam"
    lr: Positive = 0.001
    momentum: Fraction = Field(0.0, description="sgd only")
    nesterov: Flag = Field(False, description="sgd only")
    betas: tuple[Fraction, Fraction] = Field((0.9, 0.999), description="adam and adamw only")
    weight_decay: NonNegative = 0.0

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        return self


class ScheduleConfig(Choice):
    """The learning rate over time: a warm-up from 0, then the named curve down to ``final_fraction``."""

    _users = {
        "final_fraction": frozenset({"cosine", "polynomial"}),
        "power": frozenset({"polynomial"}),
        "step_epochs": frozenset({"step"}),
        "step_factor": frozenset({"step"}),
    }

    name: Literal["constant", "cosine", "step", "polynomial"] = "constant"
    warmup_epochs: NonNegative = 0.0
    final_fraction: Fraction = Field(0.0, description="cosine, polynomial: last rate over peak rate")
    power: Positive = Field(1.0, description="polynomial only")
    step_epochs: Positive = Field(30.0, description="step: epochs between two drops")
    step_factor: Share = Field(0.1, description="step: factor of each drop")


class TuningConfig(Section):
    """Horovod's knobs; what is not given keeps Horovod's own default."""

    fusion_mb: NonNegative | None = Field(None, description="tensor fusion buffer, MiB; 0 turns fusion off")
    cycle_ms: Positive | None = Field(None, description="time between two rounds of collectives, ms")
    cache: Natural | None = Field(None, description="response cache, entries; 0 turns it off")
    hierarchical: Flag | None = Field(None, description="reduce inside each node first")
    autotune: Flag = False
    timeline: FilePath | None = Field(None, description="file for Horovod's timeline of rank 0")
    compression: Literal["none", "fp16"] = "none"


class OutputConfig(Section):
    """Where results go and how often progress is told."""

    dir: FilePath = Field(Path("runs"), description="holds the run directories, one per run")
    log_every_s: Positive = Field(5.0, description="seconds between progress lines without a terminal")
    metrics_every_steps: Count = Field(25, description="steps between lines of metrics.jsonl")
    tensorboard: Flag = True


class Job(Section):
    """One training, complete."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")] = "job"
    model: Annotated[ModelConfig, OrText({"type": "string", "minLength": 1})]
    data: Annotated[
        DataConfig, OrText({"enum": ["digits", "synthetic"]}, {"type": "string", "pattern": FACTORY_PATTERN})
    ]
    batch: BatchConfig
    epochs: Count | None = None
    steps: Count | None = Field(None, description="optimizer steps; ends inside an epoch if need be")
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    backend: Literal["auto", "horovod", "ddp", "single"] = Field(
        "auto", description="auto: horovod where it is built, or else ddp on several ranks, single on one"
    )
    tuning: TuningConfig = TuningConfig()
    seed: Annotated[Integer, Field(ge=0, lt=2**63)] = 0
    output: OutputConfig = OutputConfig()

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        given = {key: inner for key, inner in SHORT_FORMS.items() if isinstance(value.get(key), str)}
        return {**value, **{key: {inner: value[key]} for key, inner in given.items()}}

    @model_validator(mode="after")
    def _one_length(self) -> Job:
        if (self.epochs is None) == (self.steps is None):
            found = "both" if self.epochs is not None else "neither"
            raise ValueError(f"exactly one of epochs and steps must be given, found {found}")
        return self

    def as_yaml(self) -> str:
        """The job as resolved, every default written out, in a form that ``load_job`` reads."""
        import yaml

        document = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        for key, section in self:
            for unused in section.unused() if isinstance(section, Choice) else ():
                del document[key][unused]
        return str(yaml.safe_dump(document, sort_keys=False))

    def global_batch(self, size: int) -> int:
        """Samples per step over all ranks."""
        return self.batch.global_ or (self.batch.per_rank or 0) * size

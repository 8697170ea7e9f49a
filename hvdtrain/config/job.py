"""The job file: one YAML document that describes one training.

``load_job`` turns a file and ``--set`` overrides into a frozen ``Job`` or raises an
``InputError`` that names the file, the line, the value and what would be legal. The
defaults stand in the models below and in ``digits.yaml``, the job that runs without a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hvdtrain.config.data import DataConfig
from hvdtrain.config.metric import MetricNames
from hvdtrain.config.optimizer import OptimizerConfig, ScheduleConfig
from hvdtrain.config.section import Choice, Section
from hvdtrain.config.values import (
    FACTORY_PATTERN,
    Arguments,
    Count,
    FilePath,
    Flag,
    Integer,
    JobName,
    ModelName,
    Natural,
    NonNegative,
    OrText,
    Positive,
)

# A text in place of one of these sections is short for a section with this one key.
SHORT_FORMS: Mapping[str, str] = {"model": "name", "data": "source"}


class ModelConfig(Section):
    """Which model: a name of ours, ``torchvision:NAME`` or ``package.module:factory``."""

    name: ModelName
    args: Arguments = Field(default_factory=dict, description="keyword arguments of the factory")


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
    accumulate: Annotated[Count, Field(le=65_536)] = Field(
        1, description="passes that each rank's share of a step is cut into; one allreduce for all of them"
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> BatchConfig:
        if (self.global_ is None) == (self.per_rank is None):
            found = "both" if self.global_ is not None else "neither"
            raise ValueError(f"exactly one of global and per_rank must be given, found {found}")
        return self


class GradientsConfig(Section):
    """What becomes of the gradients between the backward pass and the optimizer's step."""

    reduce: Literal["mean", "adasum"] = Field(
        "mean", description="mean over the samples of all ranks, or Horovod's Adasum of the ranks' means"
    )
    clip_norm: Positive | None = Field(
        None, description="largest 2-norm of all gradients together, after the reduction"
    )
    clip_value: Positive | None = Field(
        None, description="largest size of one gradient element, after the reduction"
    )
    on_nan: Literal["stop", "skip"] = Field(
        "stop", description="a loss that is no finite number on any rank: end the run, or leave the step out"
    )

    @model_validator(mode="after")
    def _one_clipping(self) -> GradientsConfig:
        if self.clip_norm is not None and self.clip_value is not None:
            raise ValueError("clip_norm and clip_value cannot be combined, choose one")
        return self


class TuningConfig(Section):
    """Horovod's knobs; what is not given keeps Horovod's own default."""

    fusion_mb: Annotated[NonNegative, Field(le=65_536)] | None = Field(
        None, description="tensor fusion buffer, MiB; 0 turns fusion off"
    )
    cycle_ms: Annotated[Positive, Field(le=60_000)] | None = Field(
        None, description="time between two rounds of collectives, ms"
    )
    cache: Annotated[Natural, Field(le=2**31 - 1)] | None = Field(
        None, description="response cache, entries; 0 turns it off"
    )
    hierarchical: Flag | None = Field(None, description="reduce inside each node first")
    autotune: Flag = False
    timeline: FilePath | None = Field(None, description="file for Horovod's timeline of rank 0")
    compression: Literal["none", "fp16", "bf16"] = Field(
        "none", description="form in which gradients travel; Horovod cannot reduce bf16, ddp can"
    )


class CheckpointConfig(Section):
    """When the state is saved, what is kept, and what a save that fails leads to."""

    every_steps: Count | None = Field(None, description="optimizer steps between two saves")
    every_epochs: Count | None = Field(None, description="epochs between two saves")
    keep_last: Count = Field(2, description="newest checkpoints that stay")
    keep_best: Literal["none", "accuracy", "loss"] = Field(
        "none", description="also keep the one with the best value on the held-out data"
    )
    on_failure: Literal["stop", "continue"] = Field(
        "stop", description="a save that failed: end the run on all ranks, or go on and tell"
    )


class PreemptionConfig(Section):
    """What asks a run to save and end with exit code 75."""

    signals: tuple[Literal["SIGTERM", "SIGUSR1", "SIGUSR2"], ...] = Field(
        ("SIGTERM",), description="signals to any rank"
    )
    margin_s: NonNegative = Field(
        60.0, description="seconds before the end of the Slurm allocation, for the save among others"
    )


class StallConfig(Section):
    """How long a run may stand still before it is ended with exit code 4, in seconds."""

    start_s: Positive = Field(900.0, description="until the first step is done")
    step_s: Positive | None = Field(
        None,
        description="for a step or a batch of an evaluation; if left out 20 times the slowest, 30 to most_s",
    )
    most_s: Positive = Field(300.0, description="upper limit of what is learned")
    save_s: Positive = Field(900.0, description="more for the step after a save began")


class OutputConfig(Section):
    """Where results go and how often progress is told."""

    dir: FilePath = Field(Path("runs"), description="holds the run directories, one per run")
    log_every_s: Positive = Field(5.0, description="seconds between progress lines without a terminal")
    metrics_every_steps: Count = Field(25, description="steps between lines of metrics.jsonl")
    tensorboard: Flag = True


class Job(Section):
    """One training, complete."""

    name: JobName = "job"
    model: Annotated[ModelConfig, OrText({"type": "string", "minLength": 1})]
    data: Annotated[
        DataConfig, OrText({"enum": ["digits", "synthetic"]}, {"type": "string", "pattern": FACTORY_PATTERN})
    ]
    batch: BatchConfig
    epochs: Annotated[Count, Field(le=1_000_000)] | None = None
    steps: Annotated[Integer, Field(ge=1, le=10**12)] | None = Field(
        None, description="optimizer steps; ends inside an epoch if need be"
    )
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    metrics: MetricNames = Field((), description="measured on the validation data after each epoch")
    gradients: GradientsConfig = GradientsConfig()
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32", description="of the forward pass (autocast); fp16 comes with a loss scaler"
    )
    sync_batchnorm: Flag = Field(False, description="batch norm over the batch of all ranks")
    backend: Literal["auto", "horovod", "ddp", "single"] = Field(
        "auto", description="auto: horovod where it is built, or else ddp on several ranks, single on one"
    )
    tuning: TuningConfig = TuningConfig()
    seed: Annotated[Integer, Field(ge=0, le=2**63 - 1)] = 0
    checkpoint: CheckpointConfig = CheckpointConfig()
    stall: StallConfig = StallConfig()
    preemption: PreemptionConfig = PreemptionConfig()
    resume: Literal["never", "auto"] = Field(
        "never",
        description="auto: go on from the newest whole checkpoint of the run directory, if there is one",
    )
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
                document[key].pop(unused, None)
        return str(yaml.safe_dump(document, sort_keys=False))

    def global_batch(self, size: int) -> int:
        """Samples per step over all ranks."""
        return self.batch.global_ or (self.batch.per_rank or 0) * size

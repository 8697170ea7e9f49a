"""The sections ``optimizer`` and ``schedule`` of a job file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from hvdtrain.config.section import Choice
from hvdtrain.config.values import Flag, Fraction, NonNegative, Positive, Share


class OptimizerConfig(Choice):
    """The optimizer; ``lr`` is used as it stands, whatever the number of ranks."""

    _users: ClassVar[Mapping[str, frozenset[str]]] = {
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

    _users: ClassVar[Mapping[str, frozenset[str]]] = {
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

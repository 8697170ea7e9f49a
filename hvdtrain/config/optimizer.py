"""The sections ``optimizer`` and ``schedule`` of a job file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from hvdtrain.config.section import Choice
from hvdtrain.config.values import Count, Flag, Fraction, NonNegative, Positive, Share

_LAYERWISE = frozenset({"lars", "lamb"})
_ADAM_LIKE = frozenset({"adam", "adamw", "lamb"})


class OptimizerConfig(Choice):
    """The optimizer; ``lr`` is used as it stands unless ``schedule.scaling`` says otherwise."""

    _users: ClassVar[Mapping[str, frozenset[str]]] = {
        "momentum": frozenset({"sgd", "lars"}),
        "nesterov": frozenset({"sgd"}),
        "betas": _ADAM_LIKE,
        "eps": _ADAM_LIKE | {"lars"},
        "trust_coefficient": frozenset({"lars"}),
    }

    name: Literal["sgd", "adam", "adamw", "lars", "lamb"] = "adam"
    lr: Positive = 0.001
    momentum: Fraction = Field(0.0, description="sgd and lars only")
    nesterov: Flag = Field(False, description="sgd only")
    betas: tuple[Fraction, Fraction] = Field((0.9, 0.999), description="adam, adamw and lamb only")
    eps: Positive | None = Field(
        None,
        description="keeps denominators above zero; if left out 1e-6 with lamb, 1e-8 with adam, adamw, lars",
    )
    weight_decay: NonNegative = 0.0
    trust_coefficient: Positive = Field(0.001, description="lars only: factor of the layer-wise rate")
    exclude_1d: Flag | None = Field(
        None,
        description="leave biases and norms (one dimension) out of weight decay and of lars's and lamb's "
        "layer-wise rate; if left out true with lars and lamb, false with the others",
    )

    @property
    def excludes_1d(self) -> bool:
        """``exclude_1d``, or what is usual with this optimizer where it is left out."""
        return self.name in _LAYERWISE if self.exclude_1d is None else self.exclude_1d

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        return self


class ScheduleConfig(Choice):
    """The learning rate over time: a peak, a warm-up to it, then the named curve down from it."""

    _users: ClassVar[Mapping[str, frozenset[str]]] = {
        "final_fraction": frozenset({"cosine", "polynomial"}),
        "power": frozenset({"polynomial"}),
        "step_epochs": frozenset({"step"}),
        "step_factor": frozenset({"step"}),
    }

    name: Literal["constant", "cosine", "step", "polynomial"] = "constant"
    scaling: Literal["none", "linear", "sqrt"] = Field(
        "none", description="how the peak rate grows with global batch over base_batch"
    )
    base_batch: Count | None = Field(
        None, description="linear, sqrt: the global batch that optimizer.lr is meant for"
    )
    warmup_epochs: NonNegative = 0.0
    final_fraction: Fraction = Field(0.0, description="cosine, polynomial: last rate over peak rate")
    power: Positive = Field(1.0, description="polynomial only")
    step_epochs: Positive = Field(30.0, description="step: epochs between two drops")
    step_factor: Share = Field(0.1, description="step: factor of each drop")

    @model_validator(mode="after")
    def _scaling_has_a_base(self) -> Self:
        if self.scaling != "none" and self.base_batch is None:
            raise ValueError(
                f"scaling {self.scaling} needs base_batch, the global batch that optimizer.lr is meant for"
            )
        if self.scaling == "none" and self.base_batch is not None:
            raise ValueError("base_batch is not used by scaling none")
        return self

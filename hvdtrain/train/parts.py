"""What a trainer is made of, and what its training comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from hvdtrain.backends.base import Backend
from hvdtrain.data.loader import Batch, PartitionLoader
from hvdtrain.train.evaluation import Evaluation
from hvdtrain.train.keeper import Keeper
from hvdtrain.train.metrics import Means, Value
from hvdtrain.train.observe import Length, Observer
from hvdtrain.train.preemption import Watch
from hvdtrain.train.profiling import RunningProfile
from hvdtrain.train.resuming import Resumed
from hvdtrain.train.stall import Progress, Unwatched
from hvdtrain.train.step import StepEnd, Stepper


class Rate(Protocol):
    """The learning rate of a step, counted from 0."""

    def __call__(self, step: int) -> float:
        """The rate."""


class Recorder(Protocol):
    """What hears of every step, on all ranks; ``Stepper.watch`` hears of its gradients."""

    def passed(self, batch: Batch, loss: torch.Tensor | None) -> None:
        """A forward pass is done, its backward pass is not."""

    def stepped(self, end: StepEnd) -> None:
        """A step is done; collective."""


@dataclass(frozen=True)
class Parts:
    """What a trainer is made of.

    Attributes:
        backend: How bytes move.
        stepper: Takes the steps of the model and its optimizer.
        train: Batches of this rank's part of the training data.
        validation: Batches of this rank's part of the held-out data.
        rate: Learning rate per step.
        length: How long to train.
        metrics_every_steps: Steps between two agreed values of the loss.
        sample: A real input without batch dimension; None where inputs are no tensors.
        may_skip: Whether unreadable samples are left out.
        precision: ``fp32``, ``bf16`` or ``fp16``, of the forward pass in training.
        evaluation: The metrics besides loss and accuracy that the held-out data is measured by.
        observer: Records; None on all ranks but 0.
        keeper: Saves checkpoints; None to save none.
        progress: Hears where this rank is.
        watch: Knows whether this rank was asked to end.
        resumed: What a checkpoint says, where the run goes on from one.
        order: What a checkpoint is to tell of the order of an epoch (``order_of``).
        recorder: Keeps every step for `hvdtrain verify`, or their times for a profile.
        profile: What a training keeps of its own pace; None elsewhere.
    """

    backend: Backend
    stepper: Stepper
    train: PartitionLoader
    validation: PartitionLoader
    rate: Rate
    length: Length
    metrics_every_steps: int
    sample: torch.Tensor | None
    may_skip: bool
    precision: str
    evaluation: Evaluation
    observer: Observer | None
    recorder: Recorder | None = None
    profile: RunningProfile | None = None
    keeper: Keeper | None = None
    watch: Watch = field(default_factory=Watch)
    progress: Progress = field(default_factory=Unwatched)
    resumed: Resumed | None = None
    order: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What training came to.

    Attributes:
        epochs: Epochs, the last of them possibly cut short.
        steps: Optimizer steps.
        train: Means over the last epoch's training samples, taken while it ran.
        validation: Means over the held-out samples after the last step.
        metrics: The job's further metrics over the same samples.
        samples: Training samples of all ranks together.
        seconds: Time in training steps, without evaluation.
        skipped: Steps that were left out.
    """

    epochs: int
    steps: int
    train: Means
    validation: Means
    metrics: dict[str, Value]
    samples: int
    seconds: float
    skipped: int = 0

    @property
    def samples_per_s(self) -> float:
        """Training samples of all ranks per second of training."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

"""The training loop. It builds nothing: it receives its parts.

Every rank runs the same steps in the same order. A rank whose share of the last batch is
empty still takes part in the reduction, with weight zero; ``step.py`` has the arithmetic.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from hvdtrain.backends.base import Backend
from hvdtrain.data.loader import Batch, PartitionLoader
from hvdtrain.errors import TrainingError
from hvdtrain.train.metrics import Means, Tally, classification
from hvdtrain.train.observe import Length, Observer
from hvdtrain.train.step import Share, StepEnd, Stepper, autocast
from hvdtrain.train.sync_batchnorm import Aside, synchronised_layers


class Rate(Protocol):
    """The learning rate of a step, counted from 0."""

    def __call__(self, step: int) -> float:
        """The rate."""


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
        observer: Records; None on all ranks but 0.
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
    observer: Observer | None


@dataclass(frozen=True)
class Outcome:
    """What training came to.

    Attributes:
        epochs: Epochs, the last of them possibly cut short.
        steps: Optimizer steps.
        train: Means over the last epoch's training samples, taken while it ran.
        validation: Means over the held-out samples after the last step.
        samples: Training samples of all ranks together.
        seconds: Time in training steps, without evaluation.
    """

    epochs: int
    steps: int
    train: Means
    validation: Means
    samples: int
    seconds: float

    @property
    def samples_per_s(self) -> float:
        """Training samples of all ranks per second of training."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0


class Trainer:
    """Trains a replica to the end of its length."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._step = 0
        self._passes: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        self._norm: float | None = None
        self._samples = 0
        self._seconds = 0.0
        self._window = Tally()
        self._epoch_sums = Tally()
        self._skipped: set[str] = set()
        self._told: set[str] = set()

    def fit(self) -> Outcome:
        """Runs all epochs, each followed by an evaluation; collective."""
        length, trained, validated = self._parts.length, Means.of([0, 0, 0]), Means.of([0, 0, 0])
        for epoch in range(length.epochs):
            trained = self._train_epoch(epoch)
            validated = self.evaluate()
            if self._parts.may_skip:
                self._tell_skipped()
            if self._parts.observer:
                values = {
                    "epoch_loss": trained.loss,
                    "validation_loss": validated.loss,
                    "validation_accuracy": validated.accuracy,
                }
                self._parts.observer.evaluated(epoch + 1, self._step, values)
        return Outcome(length.epochs, self._step, trained, validated, self._samples, self._seconds)

    def _train_epoch(self, epoch: int) -> Means:
        """Trains on every sample of the epoch, or up to the last step of the run."""
        parts = self._parts
        self._epoch_sums = Tally()
        parts.stepper.replica.model.train()
        self.run_steps(parts.train.batches(epoch), epoch)
        self._epoch_sums.merge(self._window)
        self._window = Tally()
        return self._epoch_sums.reduced(parts.backend, "epoch")

    def run_steps(self, batches: Iterable[Batch], epoch: int) -> None:
        """Takes the steps that the batches make, up to the last step of the run; collective."""
        parts = self._parts
        began_s = time.monotonic()
        for batch in batches:
            if not self._take_pass(batch):
                continue
            elapsed_s = max(1e-9, self._seconds + time.monotonic() - began_s)
            if self._step % parts.metrics_every_steps == 0 or self._step == parts.length.steps:
                self._measure(epoch, elapsed_s)
            if parts.observer:
                parts.observer.stepped(epoch + 1, self._step, self._samples / elapsed_s)
            if self._step == parts.length.steps:
                break
        if parts.backend.device.type == "cuda":
            # What was launched is not yet done.
            torch.cuda.synchronize(parts.backend.device)
        self._seconds += time.monotonic() - began_s

    def _take_pass(self, batch: Batch) -> bool:
        """A forward and a backward pass, and the step if it is the last of one; whether it was."""
        stepper = self._parts.stepper
        self._skipped.update(batch.skipped)
        share = Share(batch.count, batch.global_count, batch.number, batch.num_passes)
        if share.number == 0:
            for group in stepper.replica.optimizer.param_groups:
                group["lr"] = self._parts.rate(stepper.step)
        stepper.begin(share)
        stepper.backward(self._loss(batch), share)
        if share.is_last:
            self._end_step(stepper.end())
        return share.is_last

    def _end_step(self, end: StepEnd) -> None:
        self._step = self._parts.stepper.step
        self._norm = end.norm
        passes, self._passes = self._passes, []
        if end.skipped:
            if self._parts.observer and end.total:
                self._parts.observer.noted(f"step {self._step} left out on all ranks: {end.skipped}")
            return
        for measured in passes:
            self._window.add(*measured)
        self._samples += round(end.total)

    def _loss(self, batch: Batch) -> torch.Tensor | None:
        """The mean loss over this rank's samples; without samples one whose backward pass adds nothing."""
        if not batch.count:
            return self._loss_of_nothing()
        device = self._parts.backend.device
        inputs = batch.inputs.to(device, non_blocking=True)
        targets = batch.targets.to(device, non_blocking=True)
        loss, num_right = classification(self._forward(inputs), targets)
        self._passes.append((loss, num_right, batch.count))
        return loss

    def _forward(self, inputs: torch.Tensor) -> torch.Tensor:
        parts = self._parts
        try:
            with autocast(parts.backend.device, parts.precision):
                outputs = parts.stepper.replica.model(inputs)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise TrainingError(
                f"rank {parts.backend.rank} holds {len(inputs)} sample of step {self._step + 1}, and "
                "BatchNorm cannot normalise one value per channel: set batch.tail=drop, or another batch"
            ) from error
        return torch.as_tensor(outputs).float() if parts.precision != "fp32" else torch.as_tensor(outputs)

    def _loss_of_nothing(self) -> torch.Tensor | None:
        """For an engine or layers that wait for every rank's passes."""
        parts, replica = self._parts, self._parts.stepper.replica
        if not (replica.needs_backward or synchronised_layers(replica.module)):
            return None
        if parts.sample is None:
            raise TrainingError(
                f"rank {parts.backend.rank} has no samples in the last step, and the data's inputs are "
                "no tensors: set batch.tail to drop or pad"
            )
        aside = Aside()
        aside.add(replica.model)
        outputs = replica.model(parts.sample.unsqueeze(0).to(parts.backend.device))
        aside.end()
        return torch.as_tensor(outputs).float().sum()

    def _measure(self, epoch: int, elapsed_s: float) -> None:
        """Agrees on the loss since the last time and records it."""
        means = self._window.reduced(self._parts.backend, "window")
        self._epoch_sums.merge(self._window)
        self._window = Tally()
        if self._parts.observer:
            values = {
                "loss": means.loss,
                "accuracy": means.accuracy,
                "lr": self._parts.rate(self._step - 1),
                "samples_per_s": self._samples / elapsed_s,
            }
            if self._norm is not None:
                values["gradient_norm"] = self._norm
            self._parts.observer.measured(epoch + 1, self._step, values)

    @torch.no_grad()
    def evaluate(self) -> Means:
        """Means over every held-out sample, each counted once; collective."""
        parts, tally = self._parts, Tally()
        module = parts.stepper.replica.module
        parts.backend.agree_buffers(module)
        module.eval()
        for batch in parts.validation.batches(0):
            self._skipped.update(batch.skipped)
            if batch.count:
                inputs = batch.inputs.to(parts.backend.device, non_blocking=True)
                targets = batch.targets.to(parts.backend.device, non_blocking=True)
                loss, num_right = classification(module(inputs), targets)
                tally.add(loss, num_right, batch.count)
        module.train()
        return tally.reduced(parts.backend, "validation")

    def _tell_skipped(self) -> None:
        """Names what any rank could not read and has not been named before; collective."""
        found = set().union(*self._parts.backend.gather(self._skipped))
        new = sorted(found - self._told)
        self._told |= found
        if self._parts.observer and new:
            self._parts.observer.noted(f"{len(new)} unreadable samples skipped: {', '.join(new)}")

    def close(self) -> None:
        """Ends the loaders' processes and closes the record, also of a run that failed."""
        self._parts.train.close()
        self._parts.validation.close()
        if self._parts.observer:
            self._parts.observer.close()

    def finish(self, result: dict[str, Any]) -> None:
        """Records the result; on rank 0."""
        if self._parts.observer:
            self._parts.observer.finished(result)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        replica = self._parts.stepper.replica
        return {
            "model": replica.module.state_dict(),
            "optimizer": replica.optimizer.state_dict(),
            "step": self._step,
        }

"""The forward pass of one batch in training."""

from __future__ import annotations

import torch

from hvdtrain.data.loader import Batch
from hvdtrain.errors import TrainingError
from hvdtrain.train.classes import classify
from hvdtrain.train.parts import Parts
from hvdtrain.train.step import autocast
from hvdtrain.train.sync_batchnorm import Aside, synchronised_layers

# A batch's mean loss, number of right answers, number of samples.
Measured = tuple[torch.Tensor, torch.Tensor, int]


class Forward:
    """Gives the loss of this rank's samples."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def loss(self, batch: Batch) -> tuple[torch.Tensor | None, Measured | None]:
        """The mean loss, and what it was taken over.

        Without samples it is a loss whose backward pass adds nothing, or None where none is needed.
        """
        if not batch.count:
            return self._loss_of_nothing(), None
        device = self._parts.backend.device
        outputs = self._forward(batch.inputs.to(device, non_blocking=True))
        loss, num_right = classify(outputs, batch.targets, device)
        return loss, (loss, num_right, batch.count)

    def _forward(self, inputs: torch.Tensor) -> torch.Tensor:
        parts = self._parts
        try:
            with autocast(parts.backend.device, parts.precision):
                outputs = parts.stepper.replica.model(inputs)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise TrainingError(
                f"rank {parts.backend.rank} holds {len(inputs)} sample of step {parts.stepper.step + 1}, and "
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

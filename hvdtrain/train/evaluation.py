"""The metrics that a job names, over its held-out data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hvdtrain.backends.base import Backend
from hvdtrain.data.factory import call_factory, import_factory
from hvdtrain.errors import InputError
from hvdtrain.train.auroc import Auroc
from hvdtrain.train.confusion import FIGURES, ConfusionMatrix
from hvdtrain.train.metrics import Metric, TopAccuracy, Value
from hvdtrain.train.torchmetrics_states import TorchMetric


class Evaluation:
    """Several metrics over one pass through the data, driven as one.

    Args:
        metrics: What is measured; all ranks hold the same in the same order.
    """

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = tuple(metrics)

    def reset(self) -> None:
        """Begins anew, before each pass."""
        for metric in self._metrics:
            metric.reset()

    def update(
        self, outputs: torch.Tensor, targets: torch.Tensor, counted: torch.Tensor | None = None
    ) -> None:
        """Adds a batch of this rank's samples; see ``Metric.update``."""
        if not self._metrics:
            return
        # Once for all of them: they compute on the CPU.
        outputs, targets = outputs.detach().to("cpu"), targets.detach().to("cpu")
        for metric in self._metrics:
            metric.update(outputs, targets, counted)

    def reduced(self, backend: Backend) -> dict[str, Value]:
        """All figures over all ranks' samples, by name; collective, also for a rank that has none."""
        values: dict[str, Value] = {}
        for metric in self._metrics:
            values.update(metric.reduced(backend))
        return values


def build_evaluation(names: Sequence[str], num_classes: int | None) -> Evaluation:
    """The evaluation of a job.

    Args:
        names: The job's ``metrics``: ``accuracy``, ``topK``, ``auroc``, ``confusion``,
            ``precision``, ``recall``, ``f1`` or ``package.module:factory``, a callable without
            arguments that returns a ``torchmetrics.Metric``.
        num_classes: Classes of the data, None where it does not tell.

    Raises:
        InputError: A metric does not fit the number of classes, or a factory fails.
    """
    metrics: list[Metric] = []
    figures = [name for name in names if name in FIGURES]
    for name in names:
        if ":" in name:
            metrics.append(_made_by_factory(name))
        elif name not in FIGURES:
            metrics.append(_by_name(name)(_known(num_classes)))
        elif name == figures[0]:
            # One matrix serves all figures that follow from it.
            metrics.append(ConfusionMatrix(_known(num_classes), figures))
    return Evaluation(metrics)


def _by_name(name: str) -> Callable[[int], Metric]:
    if name == "auroc":
        return Auroc
    k = 1 if name == "accuracy" else int(name.removeprefix("top"))
    return lambda num_classes: TopAccuracy(num_classes, k, name)


def _made_by_factory(spec: str) -> TorchMetric:
    factory = import_factory(spec, where="metrics")
    return TorchMetric(spec.rpartition(":")[2], call_factory(factory, {}, spec=spec, where="metrics"))


def _known(num_classes: int | None) -> int:
    if num_classes is None:
        raise InputError(
            "the data does not tell its number of classes",
            where="metrics",
            do="give the dataset an attribute num_classes, or leave metrics out",
        )
    return num_classes

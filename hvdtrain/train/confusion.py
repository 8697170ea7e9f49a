"""The confusion matrix, and what follows from it: precision, recall and F1."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hvdtrain.backends.base import Backend
from hvdtrain.errors import InputError
from hvdtrain.train.metrics import ClassMetric, Value

FIGURES = ("confusion", "precision", "recall", "f1")


class ConfusionMatrix(ClassMetric):
    """How often each class was taken for each class.

    The state is a matrix of whole numbers, ``matrix[target, prediction]``, and ranks add it up: any
    number of ranks gives the same figures to the last bit. With tp, fp and fn of a class::

        precision = tp / (tp + fp)     recall = tp / (tp + fn)     f1 = 2 tp / (2 tp + fp + fn)

    A class that was neither a target nor predicted has none of them (None); with only one of the
    two missing they are 0. ``precision``, ``recall`` and ``f1`` are means over the classes that have
    them (macro), each class with the same weight; ``..._per_class`` are lists. scikit-learn and
    torchmetrics define them alike.

    Args:
        num_classes: Columns of the outputs.
        figures: What is reported, of ``FIGURES``.

    Raises:
        InputError: No such figure.
    """

    def __init__(self, num_classes: int, figures: Sequence[str] = FIGURES) -> None:
        if unknown := [figure for figure in figures if figure not in FIGURES]:
            raise InputError(f"a confusion matrix gives no {unknown[0]!r}", legal=", ".join(FIGURES))
        self.figures = tuple(figures)
        super().__init__(num_classes)

    def reset(self) -> None:
        """Begins anew."""
        self._matrix = torch.zeros(self.num_classes, self.num_classes, dtype=torch.int64)

    def reduced(self, backend: Backend) -> dict[str, Value]:
        """The figures chosen, and for all but ``confusion`` also a list under ``NAME_per_class``."""
        matrix = self.matrix(backend)
        per_class = class_figures(matrix)
        values: dict[str, Value] = {}
        for figure in self.figures:
            if figure == "confusion":
                values[figure] = matrix.tolist()
            else:
                values[figure] = mean_of(per_class[figure])
                values[f"{figure}_per_class"] = list(per_class[figure])
        return values

    def matrix(self, backend: Backend) -> torch.Tensor:
        """All ranks' counts, int64 of shape (classes, classes), rows are targets; collective."""
        return backend.sum(self._matrix, "metric.confusion")

    def _add(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        cells = targets.to(torch.int64) * self.num_classes + outputs.argmax(dim=1)
        counts = torch.bincount(cells, minlength=self.num_classes**2)
        self._matrix += counts.reshape(self.num_classes, self.num_classes)


def class_figures(matrix: torch.Tensor) -> dict[str, list[float | None]]:
    """Precision, recall and F1 of each class, None for one that is neither target nor prediction.

    Args:
        matrix: Counts, int64 of shape (classes, classes), rows are targets.
    """
    right = matrix.diagonal().tolist()
    predicted, real = matrix.sum(dim=0).tolist(), matrix.sum(dim=1).tolist()
    figures: dict[str, list[float | None]] = {"precision": [], "recall": [], "f1": []}
    for hits, guesses, samples in zip(right, predicted, real, strict=True):
        absent = guesses + samples == 0
        figures["precision"].append(None if absent else hits / max(1, guesses))
        figures["recall"].append(None if absent else hits / max(1, samples))
        figures["f1"].append(None if absent else 2 * hits / (guesses + samples))
    return figures


def mean_of(values: Sequence[float | None]) -> float:
    """The mean of those that are there; NaN of none."""
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else float("nan")

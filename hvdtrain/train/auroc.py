"""The area under the ROC curve, exactly: from the ranks of all samples' scores."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from hvdtrain.backends.base import Backend
from hvdtrain.train.confusion import mean_of
from hvdtrain.train.metrics import ClassMetric, Value

# What one gather brings to each rank: scores of as many classes as fit.
_GATHERED_BYTES = 32 * 2**20


class Auroc(ClassMetric):
    """Probability that a sample of a class has a higher score for it than one of another class.

    Equal scores count one half (Mann-Whitney). With two classes it is that of class 1; with more,
    each class is held against the rest, ``auroc_per_class``, and ``auroc`` is the mean over the
    classes that have both kinds of samples (macro); one without is None. No bins and no
    approximation: scores and targets of all ranks are gathered, as many classes at a time as
    fit 32 MiB, and counted in whole numbers, so that any number of ranks gives the same figure
    to the last bit.

    The score of a class is its log-odds (``log_odds``): of the order of its softmax probability, also
    where the probability itself would round to 0 or 1. A NaN among the scores makes the figures NaN.
    """

    def reset(self) -> None:
        """Begins anew."""
        self._scores: list[torch.Tensor] = []
        self._targets: list[torch.Tensor] = []

    def reduced(self, backend: Backend) -> dict[str, Value]:
        """``auroc``, and ``auroc_per_class`` where there are more than two classes."""
        targets = np.concatenate(backend.gather(_joined(self._targets, (0,), torch.int64).numpy()))
        scores = _joined(self._scores, (0, self.num_classes), torch.float64)
        areas: list[float | None] = []
        for columns in _chunks(self.num_classes, len(targets)):
            # Every rank gathers as often: the chunks follow from numbers that all of them know.
            parts = backend.gather(scores[:, columns.start : columns.stop].numpy())
            gathered = np.concatenate(parts)
            areas += [area_under(gathered[:, at], targets == column) for at, column in enumerate(columns)]
        if self.num_classes == 2:
            return {"auroc": mean_of(areas)}
        per_class = [None if area is None or math.isnan(area) else area for area in areas]
        return {"auroc": mean_of(areas), "auroc_per_class": per_class}

    def _add(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        self._scores.append(log_odds(outputs))
        self._targets.append(targets.to(torch.int64))


def log_odds(outputs: torch.Tensor) -> torch.Tensor:
    """log(p / (1 - p)) of the softmax probability p of each class.

    Args:
        outputs: Logits z, shape (N, classes), at least 2 classes.

    Returns:
        z of the class less the logarithm of the sum of exp(z) over the others; float64, same shape.
    """
    logits = outputs.to(torch.float64)
    log_chance = torch.log_softmax(logits, dim=1)
    odds = log_chance - torch.log1p(-log_chance.exp())
    # Only the largest p can be near 1, where 1 - p has lost its digits: from the others' sum for it.
    top = logits.argmax(dim=1, keepdim=True)
    others = logits.scatter(1, top, -math.inf).logsumexp(dim=1, keepdim=True)
    return odds.scatter(1, top, logits.gather(1, top) - others)


def area_under(scores: npt.NDArray[np.float64], positive: npt.NDArray[np.bool_]) -> float | None:
    """The area under the ROC curve; None unless there are samples of both kinds.

    With P positives, Q others and the midranks r of the scores, from 1:
    (sum of r over the positives - P (P + 1) / 2) / (P Q). Twice a midrank is a whole number, so
    only the last division rounds.

    Args:
        scores: Shape (N,).
        positive: Which samples are of the class, shape (N,).
    """
    num_positive = int(positive.sum())
    num_other = len(positive) - num_positive
    if not num_positive or not num_other:
        return None
    if np.isnan(scores).any():
        return float("nan")
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    twice_midrank = 2 * np.cumsum(counts) - counts + 1
    wins = int(twice_midrank[place[positive]].sum()) - num_positive * (num_positive + 1)
    return wins / (2 * num_positive * num_other)


def _joined(parts: list[torch.Tensor], empty: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.cat(parts) if parts else torch.zeros(empty, dtype=dtype)


def _chunks(num_classes: int, num_samples: int) -> list[range]:
    """The classes whose areas are computed, in groups that are gathered together."""
    first = 1 if num_classes == 2 else 0
    width = max(1, _GATHERED_BYTES // max(1, 8 * num_samples))
    return [range(start, min(start + width, num_classes)) for start in range(first, num_classes, width)]

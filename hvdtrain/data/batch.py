"""What a loader hands to the trainer, and what a data set may raise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from hvdtrain.errors import TrainingError


@dataclass(frozen=True, slots=True)
class Batch:
    """One rank's share of one step.

    Attributes:
        inputs: Collated inputs, first dimension ``count``; None where ``count`` is 0.
        targets: Collated targets; None where ``count`` is 0 or the samples are no pairs.
        count: Samples in this batch; 0 where the short last step has none left for this rank.
        global_count: Samples of all ranks in this step, copies included. None where it is unknown
            until the ranks add up their counts, because some samples may have been skipped.
        consumed: Samples of the epoch that all ranks used up to the end of this step: where to
            resume.
        copies: How many of ``global_count`` are copies that fill the last step (tail ``pad``).
        skipped: Names of the samples of this rank that could not be read and were left out.
    """

    inputs: Any
    targets: Any
    count: int
    global_count: int | None
    consumed: int
    copies: int = 0
    skipped: tuple[str, ...] = ()

    def pin_memory(self) -> Batch:
        """A copy in page-locked memory; PyTorch's loader calls this in its pinning thread."""
        return replace(self, inputs=_pinned(self.inputs), targets=_pinned(self.targets))


class SkipSample(Exception):  # noqa: N818 - a request, not an error
    """Raised by a data set, where the loader may skip: leave this sample out, it cannot be read.

    Its text is what the log calls the sample: the file and the reason.
    """


class SampleError(TrainingError):
    """A sample could not be read; the message names it, the rank and the loader's worker.

    Attributes:
        detail: The traceback as text, from the worker where there is one.
    """

    detail: str = ""


def _pinned(data: Any) -> Any:
    if isinstance(data, torch.Tensor):
        return data.pin_memory()
    if isinstance(data, Mapping):
        return {key: _pinned(value) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(_pinned, data))
    return type(data)(map(_pinned, data)) if isinstance(data, list | tuple) else data

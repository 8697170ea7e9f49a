"""What a loader hands to the trainer, and what a data set may raise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from hvdtrain.errors import TrainingError


@dataclass(frozen=True, slots=True)
class Batch:
    """One rank's share of one pass; without accumulation a step is one pass.

    Attributes:
        inputs: Collated inputs, first dimension ``count``. Where ``count`` is 0 they are filler,
            real samples that must not count, or None where the loader does not fill.
        targets: Collated targets; None without ``inputs``, or where the samples are no pairs.
        count: Samples in this batch; 0 where there are none left for this rank.
        global_count: Samples of all ranks in all passes of this step, copies included. None where it
            is unknown until the ranks add up their counts, because some may have been skipped.
        consumed: Samples of the epoch that all ranks used: where to resume. Of a pass that is not
            the last of its step it is the step's start.
        copies: How many of ``global_count`` are copies that fill the last step (tail ``pad``).
        skipped: Names of the samples of this pass that could not be read and were left out.
        number: Of this pass in its step, from 0.
        num_passes: Passes of the step, the same on all ranks.
    """

    inputs: Any
    targets: Any
    count: int
    global_count: int | None
    consumed: int
    copies: int = 0
    skipped: tuple[str, ...] = ()
    number: int = 0
    num_passes: int = 1

    @property
    def is_last(self) -> bool:
        """Whether the optimizer steps after this pass."""
        return self.number == self.num_passes - 1

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

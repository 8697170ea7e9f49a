"""Times the sections of a training step between the moments at which the loop tells where it is.

What is kept of a step are stamps; seconds are made of them when somebody asks. On CPUs a stamp is a clock's
reading, on CUDA an event in the stream that computes, so that nothing has to wait for the device.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch

# What a row holds, in seconds: the parts of a step, which sum to it, and from the end of the last
# step's reduction, which is one moment for all ranks, to the moment when this rank's gradients were ready.
COLUMNS = ("load", "forward", "backward", "reduction", "optimizer", "other", "ready")
PARTS = COLUMNS[:-1]
_PART_OF = {"loading": "load", **{name: name for name in ("forward", "backward", "reduction", "optimizer")}}


class Timer(Protocol):
    """Makes stamps, and seconds of two of them."""

    def now(self) -> Any:
        """A stamp."""

    def between(self, begin: Any, end: Any) -> float:
        """Seconds from one stamp to a later one."""


class HostTimer:
    """Reads the host's clock: for work that is done when its call returns."""

    now = staticmethod(time.perf_counter)

    def between(self, begin: float, end: float) -> float:
        """Seconds from one stamp to a later one."""
        return end - begin


class DeviceTimer:
    """Marks places in a CUDA device's current stream, whose work goes on while the host is ahead of it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> torch.cuda.Event:
        """A stamp."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def between(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Seconds from one stamp to a later one; waits for the device to come by the later one."""
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


def timer_for(device: torch.device) -> Timer:
    """The timer of a device's work."""
    return DeviceTimer(device) if device.type == "cuda" else HostTimer()


@dataclass(frozen=True, slots=True)
class _Step:
    """The stamps of one step.

    Attributes:
        marks: Section and when it began.
        end: When the step ended.
        before: When the last step's reduction had ended.
    """

    marks: list[tuple[str, Any]]
    end: Any
    before: Any

    def spans(self) -> Iterator[tuple[str, Any, Any]]:
        """Each section with its begin and its end."""
        for (section, begin), (_, end) in pairwise([*self.marks, ("", self.end)]):
            yield section, begin, end

    @property
    def ready(self) -> Any:
        return next(stamp for section, stamp in reversed(self.marks) if section == "reduction")


class StepClock:
    """Keeps the sections of the last steps of a rank.

    Args:
        timer: Of the device that computes.
        keep: Steps that are kept; older ones are forgotten.
    """

    def __init__(self, timer: Timer, keep: int) -> None:
        self._timer = timer
        self._steps: deque[_Step] = deque(maxlen=keep)
        self._marks: list[tuple[str, Any]] = []
        self._is_inside = False
        self._ready: Any = None
        self._before: Any = None

    def __len__(self) -> int:
        return len(self._steps)

    def enter(self, section: str) -> None:
        """Another section begins.

        A ``reduction`` that follows ``forward`` is a backward pass with the reduction inside of it, as DDP's:
        the reduction itself counts from ``note_ready`` on.
        """
        marks = self._marks
        if section == "reduction":
            if marks and marks[-1][0] == "forward":
                section, self._is_inside = "backward", True
            elif self._is_inside and self._ready is not None:
                self._marks.append((section, self._ready))
                return
        elif section == "loading" and all(name != "forward" for name, _ in marks):
            marks.clear()  # a step begins with its first batch; what was before is between two epochs
        marks.append((section, self._timer.now()))

    def note_ready(self) -> None:
        """The last gradient of the backward pass is there."""
        self._ready = self._timer.now()

    def tick(self, *, is_kept: bool = True) -> bool:
        """A step ends, if one began; another begins.

        Args:
            is_kept: Whether the step is kept.

        Returns:
            Whether it was a step, and not a batch of an evaluation.
        """
        end = self._timer.now()
        marks, self._marks = self._marks, [("loading", end)]
        self._is_inside, self._ready = False, None
        reduced = _reduced(marks, end)
        if reduced is None:
            return False
        if is_kept and self._before is not None:
            self._steps.append(_Step(marks, end, self._before))
        self._before = reduced
        return True

    def clear(self) -> None:
        """Forgets the steps."""
        self._steps.clear()

    def rows(self) -> list[list[float]]:
        """Seconds of the steps that are kept, as ``COLUMNS``."""
        return [self._row(step) for step in self._steps]

    def _row(self, step: _Step) -> list[float]:
        seconds = dict.fromkeys(COLUMNS, 0.0)
        for section, begin, end in step.spans():
            seconds[_PART_OF.get(section, "other")] += self._timer.between(begin, end)
        seconds["ready"] = self._timer.between(step.before, step.ready)
        return [seconds[name] for name in COLUMNS]

    def spans(self) -> list[list[tuple[str, float, float]]]:
        """Of each step that is kept its parts with begin and end, in seconds from one moment on.

        That moment, the end of the reduction before the first of them, is the same on all ranks.
        """
        if not self._steps:
            return []
        origin, between = self._steps[0].before, self._timer.between
        return [
            [
                (_PART_OF.get(section, "other"), between(origin, begin), between(origin, end))
                for section, begin, end in step.spans()
            ]
            for step in self._steps
        ]


def _reduced(marks: list[tuple[str, Any]], end: Any) -> Any:
    """When a step's last reduction had ended; None where there was none."""
    after = end
    for section, stamp in reversed(marks):
        if section == "reduction":
            return after
        after = stamp
    return None

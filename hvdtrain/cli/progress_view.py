"""Shows a run's events: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class LineView:
    """Events as plain lines, at most one progress line every ``every_s`` seconds."""

    def __init__(self, every_s: float, stream: TextIO) -> None:
        self._every_s, self._stream = every_s, stream
        self._last_s = time.monotonic()
        self.result: dict[str, Any] | None = None
        self.started = False

    def __call__(self, event: dict[str, Any]) -> None:
        """Shows one event."""
        kind = event.get("event")
        self.started |= kind in ("step", "epoch")
        if kind == "result":
            self.result = event["result"]
        elif kind == "step":
            now = time.monotonic()
            if now - self._last_s >= self._every_s:
                self._last_s = now
                self.say(progress_line(event))
        elif kind in _LINES:
            self.say(_LINES[kind](event))

    def say(self, text: str) -> None:
        """Writes one line; where nobody reads any more, or the terminal is gone, the run goes on without."""
        with suppress(OSError):
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing is held."""


class BarView(LineView):
    """Events on a terminal: one bar that moves, other lines above it."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(0.0, stream)
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __call__(self, event: dict[str, Any]) -> None:
        """Shows one event."""
        if event.get("event") != "step":
            super().__call__(event)
            return
        if self._progress is None:
            self._progress = self._open()
            self._task = self._progress.add_task("", total=event["steps"], facts="")
        assert self._task is not None
        self._progress.update(self._task, completed=event["step"], facts=progress_line(event))

    def say(self, text: str) -> None:
        """Writes one line above the bar."""
        if self._progress:
            with suppress(OSError):
                self._progress.console.print(text, markup=False, highlight=False)
        else:
            super().say(text)

    def close(self) -> None:
        """Leaves the terminal as it was."""
        if self._progress:
            with suppress(OSError):
                self._progress.stop()
            self._progress = None

    def _open(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (BarColumn(bar_width=20), TextColumn("{task.fields[facts]}", markup=False))
        progress = Progress(*columns, console=Console(file=self._stream), transient=True)
        progress.start()
        return progress


def open_view(every_s: float, stream: TextIO | None = None) -> LineView:
    """The view that suits the stream, standard error by default."""
    stream = stream or sys.stderr
    return BarView(stream) if stream.isatty() else LineView(every_s, stream)


def progress_line(event: dict[str, Any]) -> str:
    """How far the run is: epoch, step, loss, samples/s, time left, accuracy."""
    parts = [
        f"epoch {event['epoch']}/{event['epochs']}",
        f"step {event['step']}/{event['steps']}",
        f"loss {event['loss']:.4f}" if "loss" in event else "",
        f"{event['samples_per_s']:.0f} samples/s",
        f"{duration(event['left_s'])} left",
        f"accuracy {event['validation_accuracy']:.4f}" if "validation_accuracy" in event else "",
    ]
    return "  ".join(part for part in parts if part)


def duration(seconds: float) -> str:
    """Seconds as ``9 s``, ``3 min 05 s`` or ``2 h 07 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def counted(number: int, noun: str) -> str:
    """A number with its noun: ``1 rank``, ``2 ranks``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _start_line(event: dict[str, Any]) -> str:
    ranks = counted(event["size"], "rank")
    epochs, steps = counted(event["epochs"], "epoch"), counted(event["steps"], "step")
    return (
        f"job {event['job']}: {ranks}, backend {event['backend']} on {event['device']}, "
        f"global batch {event['global_batch']}, peak learning rate {event['lr']:g}, "
        f"{event['parameters']:,} parameters, {epochs}, {steps}"
    )


def _epoch_line(event: dict[str, Any]) -> str:
    return (
        f"epoch {event['epoch']}/{event['epochs']}  step {event['step']}  loss {event['epoch_loss']:.4f}  "
        f"validation loss {event['validation_loss']:.4f}  accuracy {event['validation_accuracy']:.4f}"
    )


_LINES: dict[str, Callable[[dict[str, Any]], str]] = {
    "start": _start_line,
    "epoch": _epoch_line,
    "note": lambda event: f"note: {event['text']}",
}

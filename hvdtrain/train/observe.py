"""What a run tells: rank 0 turns numbers into events, ``metrics.jsonl`` and TensorBoard.

Events are small dictionaries with an ``event`` key. Whoever shows them (the command line in
this process, or the launcher at the other end of a pipe) is passed in as a function.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Protocol

from hvdtrain.errors import TrainingError
from hvdtrain.train.metric_lines import drop_after
from hvdtrain.train.rundir import RunDirectory
from hvdtrain.train.schedule import BEGINNING, Position

Emit = Callable[[dict[str, Any]], None]
# Often enough for a bar that moves, seldom enough to cost nothing.
_EVENT_INTERVAL_S = 0.2


class Scalars(Protocol):
    """What is used of TensorBoard's writer."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Adds a point to a curve."""

    def close(self) -> None:
        """Flushes and closes the files."""


@dataclass(frozen=True)
class Length:
    """How long a run is. ``epochs`` counts the last one even where it is cut short."""

    epochs: int
    steps: int
    steps_per_epoch: int


class Observer:
    """Rank 0's record of a run; on other ranks there is none.

    Args:
        run: Where the files go.
        length: How long the run is, for the time that is left.
        emit: Shows an event to the user.
        scalars: TensorBoard's writer, None to write no events.
        start: How far the run was before; what is recorded of later steps, and of an evaluation that
            follows there, is done again.
        go_on: Whether what cannot be recorded is told once, and not the end of the run.
    """

    def __init__(
        self,
        run: RunDirectory,
        length: Length,
        emit: Emit,
        scalars: Scalars | None,
        start: Position = BEGINNING,
        *,
        go_on: bool = False,
    ) -> None:
        self._go_on, self._is_told = go_on, False
        self._run, self._length, self._emit, self._scalars = run, length, emit, scalars
        self._found = drop_after(run.metrics, start)
        self._metrics: IO[str] = run.metrics.open("a", buffering=1, encoding="utf-8")
        self._began_s, self._start = time.monotonic(), start
        self._shown_s = 0.0
        self._facts: dict[str, Any] = {}
        self._added: dict[str, float] = {}
        self._has_begun = False

    def started(self, facts: Mapping[str, Any]) -> None:
        """Tells what is about to run."""
        self._run.write_status("running", step=self._start.step, epoch=self._start.epoch)
        self._emit({"event": "start", **facts})
        if self._found:
            self.noted(self._found)

    def stepped(self, epoch: int, step: int, samples_per_s: float) -> None:
        """Shows how far the run is, at most five times a second; every rank 0 step calls it."""
        if not self._has_begun:
            self._has_begun = True
            self._run.accept()
        now = time.monotonic()
        if now - self._shown_s < _EVENT_INTERVAL_S and step != self._length.steps:
            return
        self._shown_s = now
        left_s = (now - self._began_s) / max(1, step - self._start.step) * (self._length.steps - step)
        progress = {
            "epoch": epoch,
            "epochs": self._length.epochs,
            "step": step,
            "steps": self._length.steps,
            "samples_per_s": samples_per_s,
            "left_s": left_s,
        }
        self._emit({"event": "step", **progress, **self._facts})

    def measured(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Records values that all ranks agreed on: ``loss``, ``validation_accuracy`` and so on."""
        values, self._added = {**values, **self._added}, {}
        self._facts.update(values)
        line = {"step": step, "epoch": epoch, "time_s": round(time.monotonic() - self._began_s, 3), **values}
        with self._recording():
            self._metrics.write(json.dumps(finite(line)) + "\n")
            if self._scalars:
                for name, value in values.items():
                    self._scalars.add_scalar(name, value, step)

    def add(self, name: str, value: float) -> None:
        """Adds a figure to the values that are recorded next."""
        self._added[name] = value

    def evaluated(self, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Records an evaluation and shows it."""
        self.measured(epoch, step, values)
        with self._recording():
            self._run.write_status("running", step=step, epoch=epoch)
        self._emit(
            {"event": "epoch", "epoch": epoch, "epochs": self._length.epochs, "step": step, **self._facts}
        )

    def noted(self, text: str) -> None:
        """Tells the user something once."""
        self._emit({"event": "note", "text": text})

    def finished(self, result: Mapping[str, Any]) -> None:
        """Records the result and closes the files."""
        with self._recording():
            self.close()
        with self._recording():
            self._run.write_status("done", result=dict(result))
        self._emit({"event": "result", "result": dict(result)})

    @contextmanager
    def _recording(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = f"{self._run.path}: what the run tells cannot be written: {error.strerror or error}"
            if not self._go_on:
                raise TrainingError(f"{reason}; earlier checkpoints are whole") from error
            if not self._is_told:
                self.noted(f"{reason}; going on (checkpoint.on_failure=continue)")
            self._is_told = True

    def close(self) -> None:
        """Closes the files, whether the run failed or not; more than once does no harm."""
        self._metrics.close()
        if self._scalars:
            self._scalars.close()


def finite(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN and no infinity: they become null."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in values.items()
    }

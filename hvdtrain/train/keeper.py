"""Saves while training goes on: the ranks stop for a copy in memory, a thread of rank 0 writes it.

At most one save is in flight. One that fails is told to all ranks with the next step's reduction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from hvdtrain.backends.base import Backend
from hvdtrain.config import CheckpointConfig
from hvdtrain.errors import AgreedError
from hvdtrain.train.checkpoint import Snapshot, save_checkpoint
from hvdtrain.train.rules import CURE
from hvdtrain.train.schedule import Position
from hvdtrain.train.store import Stored, add_metrics, has_right_checksums, prune, remove_stale, stored_in

Tell = Callable[[str], None]


class Keeper:
    """The checkpoints of a run that is going on; all ranks hold one and call it alike.

    Attributes:
        newest_step: Of the last save that stands; only rank 0 knows.
        stall_s: Seconds that training waited for copies.

    Args:
        backend: How bytes move.
        config: The job's ``checkpoint`` section.
        folder: The run's ``checkpoints`` folder on rank 0, None elsewhere.
        tell: Tells the user something, on rank 0.
        parameters: Names in the state's ``model`` whose values must be finite; a state in which one is not
            is never saved. Buffers may hold what they like.
    """

    def __init__(
        self,
        backend: Backend,
        config: CheckpointConfig,
        folder: Path | None,
        tell: Tell,
        parameters: Collection[str] = (),
    ) -> None:
        self._backend, self._config, self._folder, self._tell = backend, config, folder, tell
        self._parameters = frozenset(parameters)
        self._snapshot = Snapshot()
        self._writer: Thread | None = None
        self._error: Exception | None = None
        self._saved_step = -1
        self.newest_step: int | None = None
        # What is known of checksums: each old checkpoint is read once at most.
        self._is_right: dict[int, bool] = {}
        self.stall_s = 0.0
        if folder is not None and (stale := remove_stale(folder)):
            tell(f"removed what a save left that was cut short: {', '.join(stale)}")

    def is_due(self, at: Position, *, is_epoch_end: bool) -> bool:
        """Whether the job asks for a save here; the same on all ranks."""
        config = self._config
        if is_epoch_end:
            return config.every_epochs is not None and at.epoch % config.every_epochs == 0
        return config.every_steps is not None and at.step % config.every_steps == 0

    def save(
        self,
        at: Position,
        state: Callable[[], Mapping[str, Any]],
        own: Mapping[str, Any],
        measured: Mapping[str, float] | None = None,
    ) -> None:
        """Takes a copy and begins to write it; collective.

        Args:
            at: How far the run is.
            state: Gives what rank 0 holds for all.
            own: What each rank holds for itself.
            measured: Values on the held-out data, after an evaluation; they are told of the checkpoint also
                where it was made before they were known.
        """
        began_s = time.monotonic()
        ranks = self._backend.gather(dict(own))
        if self._folder is not None:
            if at.step != self._saved_step:
                self._join()
                copied = self._snapshot.take({**state(), **asdict(at), "ranks": ranks})
                facts = {"epoch": at.epoch, "consumed": at.consumed, "metrics": dict(measured or {})}
                self._begin(at.step, partial(self._save_finite, self._folder, at.step, copied, facts))
            elif measured:
                self._join()
                if not self.has_failed():  # or there is no such checkpoint
                    self._begin(at.step, partial(add_metrics, self._folder / f"step-{at.step}", measured))
        self._saved_step = at.step
        self.stall_s += time.monotonic() - began_s

    def has_failed(self) -> bool:
        """Whether a save failed since ``heed`` was called; only rank 0 knows."""
        return self._error is not None

    def heed(self) -> None:
        """All ranks have heard that a save failed.

        Raises:
            AgreedError: The job wants to stop then, or the model holds values that are no finite numbers.
        """
        error, self._error = self._error, None
        told = (_reason(error), isinstance(error, _NotFiniteError)) if error else ("", False)
        reason, is_lost = self._backend.broadcast(told)
        if is_lost or self._config.on_failure == "stop":
            raise AgreedError(f"{reason}; earlier checkpoints are whole")
        self._saved_step = -1
        if self._folder is not None:
            self._tell(f"{reason}; going on (checkpoint.on_failure=continue)")

    def finish(self, *, must_stand: bool = False) -> None:
        """Waits for the save in flight, and lets all ranks hear how it ended; collective.

        Args:
            must_stand: Whether the run relies on the newest save, whatever the job says of one that fails.

        Raises:
            AgreedError: It failed, and the job wants to stop then, or it was to stand.
        """
        self._join()
        step = self._saved_step
        if any(self._backend.gather(self.has_failed())):
            self.heed()
            if must_stand:
                raise AgreedError(f"asked to end, but step {step} could not be saved; earlier ones are whole")

    def close(self) -> None:
        """Waits for the save in flight, whatever becomes of it."""
        self._join()

    def _join(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _begin(self, step: int, work: Callable[[], object]) -> None:
        self._writer = Thread(target=self._write, args=(step, work))
        self._writer.start()

    def _write(self, step: int, work: Callable[[], object]) -> None:
        assert self._folder is not None
        try:
            work()
            self._is_right[step] = True
            self.newest_step = step
            prune(self._folder, self._config.keep_last, {step} | self._best(self._folder), self._is_whole)
        except Exception as error:  # of whatever kind, the ranks must hear of it
            self._error = error

    def _save_finite(self, folder: Path, step: int, state: Mapping[str, Any], facts: dict[str, Any]) -> None:
        for name, value in state["model"].items():
            if name in self._parameters and not _is_finite(value):
                raise _NotFiniteError(step, name)
        save_checkpoint(folder, step, state, **facts)

    def _is_whole(self, stored: Stored) -> bool:
        if stored.step not in self._is_right:
            self._is_right[stored.step] = has_right_checksums(stored)
        return self._is_right[stored.step]

    def _best(self, folder: Path) -> set[int]:
        """The step whose value on the held-out data is best, and any better ones that turn out damaged."""
        name = self._config.keep_best
        if name == "none":
            return set()
        key, sign = ("validation_accuracy", 1.0) if name == "accuracy" else ("validation_loss", -1.0)
        rated = [
            (sign * float(stored.facts["metrics"][key]), stored)
            for stored in stored_in(folder)
            if not stored.fault and (stored.facts.get("metrics") or {}).get(key) is not None
        ]
        kept = set()
        for _, stored in sorted(rated, key=lambda pair: pair[0], reverse=True):
            kept.add(stored.step)
            if self._is_whole(stored):
                break
        return kept


class _NotFiniteError(Exception):
    """The model is lost: a parameter of it holds values that are no finite numbers."""

    def __init__(self, step: int, name: str) -> None:
        super().__init__(
            f"step {step}: parameter {name!r} holds values that are no finite numbers, which is not saved; "
            f"{CURE}"
        )


def _is_finite(value: Any) -> bool:
    # What has one byte has no test of its own in PyTorch.
    is_tested = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype.itemsize > 1
    return not is_tested or bool(torch.isfinite(value).all())


def _reason(error: Exception) -> str:
    if isinstance(error, _NotFiniteError):
        return str(error)
    detail = getattr(error, "strerror", None) or " ".join(str(error).split())
    where = getattr(error, "filename", None)
    return f"a checkpoint could not be saved: {detail}{f' ({where})' if where else ''}"

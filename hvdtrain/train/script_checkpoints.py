"""Checkpoints of a script's run: the same files, written in the same way, as those of ``hvdtrain train``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from hvdtrain.backends.base import Backend
from hvdtrain.config import CheckpointConfig
from hvdtrain.errors import InputError
from hvdtrain.train.checkpoint import load_checkpoint
from hvdtrain.train.keeper import Keeper
from hvdtrain.train.locking import lock_writer, unlock
from hvdtrain.train.preemption import Watch
from hvdtrain.train.randomness import random_state
from hvdtrain.train.schedule import Position
from hvdtrain.train.script_state import Held, hand_out, take_up_random
from hvdtrain.train.store import newest_whole


class ScriptCheckpoints:
    """What a run saves and where it goes on; all ranks hold one and call it alike.

    Args:
        backend: How bytes move.
        held: What the script trains with.
        folder: The folder that the user named; ``checkpoints`` in it holds them.
        keep_last: Newest ones that stay.
        logger: Speaks on rank 0.
        watch: Knows whether this rank was asked to end.
    """

    def __init__(
        self,
        backend: Backend,
        held: Held,
        folder: Path,
        keep_last: int,
        logger: logging.Logger,
        watch: Watch,
    ) -> None:
        self._backend, self._held, self._logger, self.watch = backend, held, logger, watch
        self._folder = folder.absolute() / "checkpoints" if backend.rank == 0 else None
        self._lock: int | None = None
        self._config = CheckpointConfig(keep_last=keep_last)
        self._keeper: Keeper | None = None

    def open(self) -> int:
        """Goes on from the newest whole checkpoint, if there is one; collective.

        Returns:
            Steps that were taken before.

        Raises:
            InputError: The folder cannot be used, or what it holds does not fit the script.
        """
        found: dict[str, Any] | str | None = None
        if self._folder is not None:
            try:
                found = self._read(self._folder)
            except InputError as error:
                found = str(error)
        state = hand_out(self._backend, found)
        if state is not None:
            self._take_in(state)
        names = self._held.trained_names()
        self._keeper = Keeper(self._backend, self._config, self._folder, self._logger.info, names)
        return self._step

    def save(self) -> None:
        """Takes a copy and begins to write it; collective.

        Raises:
            AgreedError: The save before failed.
        """
        keeper, held = self._opened, self._held
        self._wait_for_disk()
        place = held.course.next_place()
        at = Position(self._step, place[1], held.consumed)
        keeper.save(at, held.state, {"random": random_state(self._backend.device)})

    def finish(self, *, must_stand: bool = False) -> None:
        """Waits until the last save is on the disk; collective.

        Raises:
            AgreedError: It failed.
        """
        if self._keeper is not None:
            self._keeper.finish(must_stand=must_stand)

    def close(self) -> None:
        """Lets others have the folder, and gives the signals back."""
        self.watch.close()
        unlock(self._lock)
        self._lock = None

    @property
    def _opened(self) -> Keeper:
        assert self._keeper is not None
        return self._keeper

    @property
    def _step(self) -> int:
        return self._held.steppers[0].step

    def _wait_for_disk(self) -> None:
        """At most one save is in flight, and all ranks hear of one that failed."""
        self._opened.close()
        if any(self._backend.gather(self._opened.has_failed())):
            self._opened.heed()

    def _read(self, folder: Path) -> dict[str, Any] | None:
        """What the newest whole checkpoint holds, on rank 0, whose folder it is from now on."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"run.resume: {error.strerror}", where=str(folder)) from None
        self._lock = lock_writer(folder)
        stored, passed_over = newest_whole(folder)
        for other in passed_over:
            self._logger.warning("passed over %s: %s", other.path.name, other.fault)
        if stored is None:
            if passed_over:
                raise InputError("no checkpoint is whole", where=str(folder), do="remove them to start anew")
            return None
        try:
            state = load_checkpoint(stored.path)
            self._held.check(state)
        except (InputError, ValueError, KeyError, TypeError) as error:
            raise _unfit(stored.path, error) from None
        self._logger.info("going on from %s, which %d rank(s) saved", stored.path.name, len(state["ranks"]))
        return {**state, "path": str(stored.path)}

    def _take_in(self, state: dict[str, Any]) -> None:
        try:
            self._held.take_in(state)
        except (ValueError, RuntimeError, KeyError, TypeError) as error:
            raise _unfit(Path(state["path"]), error) from None
        take_up_random(state, self._backend.device)


def _unfit(path: Path, error: Exception) -> InputError:
    return InputError(
        f"the checkpoint does not fit the script: {error}",
        where=str(path),
        do="go on with the script that made it, or name another folder",
    )

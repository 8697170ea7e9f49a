"""Checkpoints of a script's run: the same files, written in the same way, as those of ``hvdtrain train``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hvdtrain.backends.base import Backend
from hvdtrain.config import CheckpointConfig
from hvdtrain.errors import InputError
from hvdtrain.train.checkpoint import load_checkpoint
from hvdtrain.train.keeper import Keeper
from hvdtrain.train.locking import lock_writer, unlock
from hvdtrain.train.plain import UnreadableError
from hvdtrain.train.preemption import Watch
from hvdtrain.train.randomness import random_state
from hvdtrain.train.schedule import Position
from hvdtrain.train.script_state import Held, hand_out, take_up_random
from hvdtrain.train.store import Stored, look_at, stored_in

_UNREADABLE = "it cannot be read again"


class ScriptCheckpoints:
    """What a run saves and where it goes on; all ranks hold one and call it alike.

    Args:
        backend: How bytes move.
        meet: Waits for all ranks at a place of that name, however long that takes: an engine's own
            collectives may have a limit.
        held: What the script trains with.
        folder: The folder that the user named; ``checkpoints`` in it holds them.
        keep_last: Newest ones that stay.
        logger: Speaks on rank 0.
        watch: Knows whether this rank was asked to end.
    """

    def __init__(
        self,
        backend: Backend,
        meet: Callable[[str], None],
        held: Held,
        folder: Path,
        keep_last: int,
        logger: logging.Logger,
        watch: Watch,
    ) -> None:
        self._backend, self._meet, self._held, self._logger = backend, meet, held, logger
        self.watch = watch
        self._folder = folder.absolute() / "checkpoints" if backend.rank == 0 else None
        self._lock: int | None = None
        self._config = CheckpointConfig(keep_last=keep_last)
        self._keeper: Keeper | None = None

    def open(self) -> None:
        """Goes on from the newest whole checkpoint, if there is one; collective.

        Raises:
            InputError: The folder cannot be used, or what it holds does not fit the script.
        """
        found: dict[str, Any] | str | None = None
        self._held.check_readable()
        if self._folder is not None:
            try:
                found = self._read(self._folder)
            except InputError as error:
                found = str(error)
        self._meet("run.resume")
        state = hand_out(self._backend, found)
        if state is not None:
            self._take_in(state)
        names = self._held.trained_names()
        self._keeper = Keeper(self._backend, self._config, self._folder, self._logger.info, names)

    def save(self) -> None:
        """Takes a copy and begins to write it; collective.

        Raises:
            AgreedError: The save before failed.
        """
        keeper, held = self._opened, self._held
        self._wait_for_disk()
        step, (_, epoch) = held.course.saved(), held.course.next_place()
        at = Position(step, epoch, held.consumed)
        keeper.save(at, held.state, {"random": random_state(self._backend.device)})

    def finish(self, *, must_stand: bool = False) -> None:
        """Waits until the last save is on the disk; collective.

        Raises:
            AgreedError: It failed.
        """
        if self._keeper is not None:
            self._keeper.close()
            self._meet("the end of a save")
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

    def _wait_for_disk(self) -> None:
        """At most one save is in flight, and all ranks hear of one that failed."""
        self._opened.close()
        self._meet("the end of a save")
        if any(self._backend.gather(self._opened.has_failed())):
            self._opened.heed()

    def _read(self, folder: Path) -> dict[str, Any] | None:
        """What the newest whole checkpoint holds, on rank 0, whose folder it is from now on."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"run.resume: {error.strerror}", where=str(folder)) from None
        self._lock = lock_writer(folder)
        passed_over: list[Stored] = []
        for stored in stored_in(folder):
            checked = look_at(stored.path, whole=True)
            try:
                if not checked.fault:
                    return self._found(stored.path, passed_over)
            except UnreadableError as error:
                # As it was written, by a version that did not look at what it kept.
                checked = replace(checked, fault=f"{_UNREADABLE}: {error}")
            passed_over.append(checked)
        if passed_over:
            faults = "; ".join(f"{other.path.name}: {other.fault}" for other in passed_over)
            raise InputError(
                f"no checkpoint is whole: {faults}", where=str(folder), do="remove them to start anew"
            )
        return None

    def _found(self, path: Path, passed_over: Sequence[Stored]) -> dict[str, Any]:
        """What a whole checkpoint holds.

        Raises:
            InputError: It does not fit the script.
            UnreadableError: It wants code to be run.
        """
        try:
            state = load_checkpoint(path)
            self._held.check(state)
        except UnreadableError:
            raise
        except (InputError, ValueError, KeyError, TypeError) as error:
            raise _unfit(path, error) from None
        for other in passed_over:
            is_unreadable = other.fault.startswith(_UNREADABLE)
            kept = ", kept under another name" if is_unreadable else ""
            self._logger.warning("passed over %s%s: %s", other.path.name, kept, other.fault)
            if is_unreadable:
                # Its checksums are right: under its name it would be kept in the place of a later save.
                with suppress(OSError):
                    other.path.rename(other.path.with_name(f"unreadable-{other.path.name}"))
        self._logger.info("going on from %s, which %d rank(s) saved", path.name, len(state["ranks"]))
        return {**state, "path": str(path)}

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

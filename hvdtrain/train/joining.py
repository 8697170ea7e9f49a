"""Trains as one rank of a launch that somebody else made: foreign mpirun, srun, horovodrun, torchrun."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtrain.backends.base import Backend
from hvdtrain.config import Job
from hvdtrain.data.validate import validate_source
from hvdtrain.errors import ExitCode, HvdtrainError, InputError, Preempted
from hvdtrain.topology.environ import World
from hvdtrain.train.elastic import commit_steps, train_elastically
from hvdtrain.train.end_signals import end_on_signals
from hvdtrain.train.ending import end_rank
from hvdtrain.train.locking import await_last_life, lock_writer, unlock
from hvdtrain.train.observe import Emit
from hvdtrain.train.preflight import check_batch, check_timeline
from hvdtrain.train.rank import run_rank
from hvdtrain.train.rank_log import copy_output
from hvdtrain.train.reopening import open_run_directory
from hvdtrain.train.replaced import state_of
from hvdtrain.train.rundir import RunDirectory
from hvdtrain.train.seats import Seating


@dataclass
class _Joined:
    """One rank's view of the run; ``run`` is known once the directory is made, where it can be reached."""

    job: Job
    world: World
    run_dir: Path | None
    overwrite: bool
    emit: Emit
    run: RunDirectory | None = None
    started: bool = False
    has_log: bool = False

    def open_run(self, backend: Backend, seating: Seating) -> RunDirectory | None:
        """Rank 0 looks at the data and makes the directory, and all hear where, or why not; collective.

        Where ranks go and come it is called again in each new world, whose rank 0 may be another one.
        """
        self.world = backend.world
        found: _Opened | str = self._make(seating) if backend.rank == 0 else ""
        found = backend.broadcast(found)
        if isinstance(found, str):
            raise InputError(found)
        if self.run is None and found.is_here():
            self.run = RunDirectory(found.path, found.made, earlier=found.earlier, result=found.result)
        if self.run is not None and found.result is None:
            self._keep_log(self.run.logs / f"rank-{self.world.rank}.log")
        if backend.rank:
            return None
        self.emit({"event": "run", "path": str(found.path)})
        return self.run

    def _make(self, seating: Seating) -> _Opened | str:
        try:
            self.run = self._open()
        except InputError as error:
            return str(error)
        if self.run.result is None:
            self.run.write_json("plan.json", _plan(self.world, seating))
        run = self.run
        return _Opened(run.path, run.made, _status(run.path), run.earlier, run.result)

    def _open(self) -> RunDirectory:
        if self.run is None:
            validate_source(self.job.data)
            if path := self.run_dir:
                folders = [path, path / "checkpoints"]
                await_last_life(os.environ, folders, self.job.stall, self._note)
            return open_run_directory(self.job, self.run_dir, overwrite=self.overwrite)
        if self.run.writer is not None:
            return self.run
        unlock(lock_writer(self.run.checkpoints))  # waits for what its rank 0, which is gone, has left behind
        return open_run_directory(self.job.model_copy(update={"resume": "auto"}), self.run.path)

    def _note(self, text: str) -> None:
        self.emit({"event": "note", "text": text})

    def _keep_log(self, path: Path) -> None:
        if self.has_log:
            return
        self.has_log = True
        try:
            copy_output(path)
        except OSError as error:
            sys.stderr.write(f"hvdtrain: note: the log {path} cannot be written: {error.strerror}\n")

    def show(self, event: dict[str, Any]) -> None:
        """Hands an event on."""
        self.started |= event.get("event") in ("step", "epoch")
        self.emit(event)

    def record(self, error: BaseException) -> None:
        """Leaves a directory that says how the run ended, or what was there where it never began.

        The rank that failed writes, since the launcher ends the others, rank 0 too, before they hear of it.
        """
        if self.run is None or isinstance(error, Preempted):  # which is no failure, and recorded
            return
        if isinstance(error, InputError) and not self._has_begun():
            if self.world.rank > 0:
                # Most such errors are met by all ranks: rank 0 tells it, and its end ends this rank.
                time.sleep(1.0)
            self.run.discard()
            return
        code = error.exit_code if isinstance(error, HvdtrainError) else ExitCode.FAILED
        self._record_failure(int(code), " ".join(str(error).split()) or type(error).__name__)

    def record_signal(self, number: signal.Signals, is_end: bool) -> None:
        """As ``record``, for a signal; other ranks than 0 leave it to rank 0.

        A rank that is to save before it ends may not come to that: what it writes then replaces this.
        """
        if self.run and self.world.rank == 0:
            self._record_failure(128 + number, f"ended by {number.name}", is_end)

    def _record_failure(self, code: int, told: str, is_end: bool = True) -> None:
        assert self.run is not None
        with suppress(OSError):  # the directory may be gone: another rank discarded it
            if self.run.replaces and is_end:
                self.run.discard()
            self.run.write_failure(code, told)

    def _has_begun(self) -> bool:
        """Whether training began; ranks other than 0, which see no events, take the status for it."""
        assert self.run is not None
        return self.started if self.world.rank == 0 else state_of(self.run.path) != "starting"


@dataclass(frozen=True)
class _Opened:
    """What rank 0 tells of the directory that it made or opened again.

    Attributes:
        path: The directory.
        made: As ``RunDirectory`` has it.
        status: The content of its ``status.json``.
        earlier: As ``RunDirectory`` has it: who knows it removes nothing of a run that is to go on.
        result: As ``RunDirectory`` has it.
    """

    path: Path
    made: list[Path]
    status: str
    earlier: Mapping[str, Any] | None
    result: Mapping[str, Any] | None

    def is_here(self) -> bool:
        """Whether this rank sees the very same directory: its host may lack the file system."""
        return _status(self.path) == self.status


def _status(path: Path) -> str:
    try:
        return (path / "status.json").read_text("utf-8")
    except OSError:
        return ""


def join(job: Job, world: World, run_dir: Path | None, overwrite: bool, emit: Emit) -> dict[str, Any]:
    """Trains and returns the result document; never returns from a failure.

    Args:
        job: The job, the same on all ranks.
        world: Which rank this is.
        run_dir: The run directory that the user named, if any.
        overwrite: Whether a run that it holds is lost.
        emit: Shows an event to the user; a ``close`` of it is called before a failed rank ends.
    """
    joined = _Joined(job, world, run_dir, overwrite, emit)
    end_on_signals(joined.record_signal)
    try:
        check_batch(job, world.size)
        if world.rank == 0:
            check_timeline(job.tuning.timeline)
        if os.environ.get("HOROVOD_ELASTIC") == "1":
            return train_elastically(job, joined.open_run, joined.show, commit_steps(os.environ))
        return run_rank(job, world, joined.open_run, joined.show)
    except BaseException as error:
        joined.record(error)
        getattr(emit, "close", lambda: None)()
        end_rank(error, world)


def _plan(world: World, seating: Seating) -> dict[str, Any]:
    """What is known of a launch that somebody else made."""
    ranks = [{"rank": seat.rank, "host": seat.host, "device": seat.device or None} for seat in seating.seats]
    return {"schema": 1, "source": world.launcher, "size": world.size, "ranks": ranks}

"""The run directory: where one run's files lie, who may write there, and how.

Imports no torch: the launcher makes the directory before any rank starts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvdtrain.config import Job
from hvdtrain.errors import InputError
from hvdtrain.files import write_atomically
from hvdtrain.train import replaced
from hvdtrain.train.locking import is_free, lock_directory, lock_run, lock_writer, unlock
from hvdtrain.train.store import stored_in

_MAX_RUNS = 100_000
_GOING_ON = frozenset({"starting", "running"})


@dataclass
class RunDirectory:
    """A directory of one run.

    Attributes:
        path: The directory.
        made: The directories that were made for it, innermost first; ``discard`` removes them.
        lock: Descriptor that marks the directory as in use while this process lives.
        earlier: The status of the run that is to go on; None of a new run. Nothing removes the files of one.
        writer: Descriptor that marks this process as the one that writes the checkpoints.
        result: What a run came to that is done, where it should have gone on and has nothing left to do.
    """

    path: Path
    made: list[Path] = field(default_factory=list)
    lock: int | None = None
    earlier: Mapping[str, Any] | None = None
    writer: int | None = None
    result: Mapping[str, Any] | None = None

    @property
    def logs(self) -> Path:
        """One log per rank: ``rank-N.log``."""
        return self.path / "logs"

    @property
    def events(self) -> Path:
        """TensorBoard's event files."""
        return self.path / "events"

    @property
    def checkpoints(self) -> Path:
        """One folder per checkpoint: ``step-N``."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """A line of JSON per logged step."""
        return self.path / "metrics.jsonl"

    def write_json(self, name: str, document: Mapping[str, Any]) -> None:
        """Replaces a file of the directory at once: readers see the old or the new one whole."""
        write_atomically(self.path / name, json.dumps(document, indent=2) + "\n")

    def write_status(self, state: str, **facts: Any) -> None:
        """Writes ``status.json``: the state and when it was reached (seconds since 1970)."""
        self.write_json("status.json", {"schema": 1, "state": state, "time_s": time.time(), **facts})

    def unlock(self) -> None:
        """Lets others have the directory."""
        unlock(self.lock)
        self.lock = None

    def begin_writing(self) -> None:
        """Marks this process as the one that trains here, for its life: its launcher may end before it.

        Raises:
            InputError: An earlier one is still at work.
        """
        if self.writer is None:
            self.writer = lock_writer(self.checkpoints)

    def write_failure(self, code: int, error: str) -> None:
        """Writes that a run that was going on failed; an end that is written is the cause and stays."""
        if replaced.state_of(self.path) in _GOING_ON:
            with suppress(OSError):  # the disk may be what failed
                self.write_status("failed", exit_code=code, error=error)

    def accept(self) -> None:
        """The run has begun: what it replaces is lost now, and not before."""
        replaced.lose(self.path)

    @property
    def replaces(self) -> bool:
        """Whether an earlier run waits to be put back, in case that this one never begins."""
        return replaced.is_aside(self.path)

    def discard(self) -> None:
        """Removes what a run that never began has written, and nothing else; puts back what it replaces."""
        if self.earlier is not None:
            self.write_json("status.json", self.earlier)
            return
        replaced.clear(self.path)
        replaced.put_back(self.path)
        _remove_empty(self.made)


def create_run_directory(job: Job, asked: Path | None, *, overwrite: bool = False) -> RunDirectory:
    """Makes the directory of a new run and writes ``job.yaml`` into it.

    Args:
        job: The job as resolved.
        asked: The directory that the user named; None takes the next free one of
            ``runs/NAME``, ``runs/NAME-2`` and so on.
        overwrite: Whether a named directory may hold an earlier run; its files are set aside until
            ``accept`` and put back by ``discard``.

    Raises:
        InputError: It cannot be written, already holds a run, or holds files that are no run's.
    """
    run = _next_free(job) if asked is None else _claim(asked, overwrite)
    run.path = run.path.absolute()
    try:
        # The status first: what has one is a run, whenever this process is killed.
        run.write_status("starting")
        write_atomically(run.path / "job.yaml", job.as_yaml())
        for folder in (run.events, run.logs, run.checkpoints):
            folder.mkdir(exist_ok=True)
    except OSError as error:
        run.discard()
        raise _not_writable(run.path, error) from None
    return run


def _claim(path: Path, overwrite: bool) -> RunDirectory:
    """Takes a directory that the user named."""
    made = _make(path)
    try:
        if not (overwrite or replaced.is_aside(path)):
            _refuse_run(path)
        run = RunDirectory(path, made, lock_run(path))
    except OSError as error:  # it is there, and not for this user
        raise _not_writable(path, error) from None
    try:
        _empty(run, overwrite)
        # Of two runs that start at once in one directory, this lets one in.
        run.logs.mkdir()
    except FileExistsError:
        run.unlock()
        raise InputError("another run is starting in this directory", where=str(path)) from None
    except OSError as error:
        run.unlock()
        raise _not_writable(path, error) from None
    except InputError:
        run.unlock()
        raise
    return run


def _empty(run: RunDirectory, overwrite: bool) -> None:
    """Makes room in a directory that exists: sets a run aside, refuses what is none."""
    path = run.path
    if run.replaces:
        # Whoever replaced that run was killed before it began.
        replaced.put_back(path)
    if not overwrite:
        _refuse_run(path, is_ours=True)
    is_run = replaced.state_of(path) is not None
    if not is_run and (names := replaced.strangers(path)):
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise InputError(
            f"run directory holds files that are no run's: {shown}",
            where=str(path),
            do="choose a new or an empty folder with --run-dir",
        )
    if is_run:
        replaced.set_aside(path)


def _refuse_run(path: Path, *, is_ours: bool = False) -> None:
    """Refuses a directory that holds a run; first what keeps it, of the ways out.

    Args:
        path: The directory.
        is_ours: Whether this process has locked it: then nobody else is at work there.
    """
    state = replaced.state_of(path)
    if state is None:
        return
    what = f"run directory already holds {_held_by(path)}"
    if state == "done":
        do = "choose another --run-dir, or pass --overwrite to lose that run"
    elif not (is_ours or (is_free(path) and is_free(path / "checkpoints"))):
        what += ", and a process is training there"
        do = "wait for its end, or choose another --run-dir"
    elif stored_in(path / "checkpoints"):
        do = "pass --resume to go on with that run, choose another --run-dir, or pass --overwrite to lose it"
    else:
        do = "choose another --run-dir, or pass --overwrite to lose that run, which has no checkpoint"
    raise InputError(what, where=str(path), do=do)


def _next_free(job: Job) -> RunDirectory:
    """Claims the first free name; ``mkdir`` decides, so that two jobs never share one."""
    parents = _make(job.output.dir)
    for number in range(1, _MAX_RUNS):
        path = job.output.dir / (job.name if number == 1 else f"{job.name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise _not_writable(path, error) from None
        return RunDirectory(path, [path, *parents], lock_directory(path))
    raise InputError(f"{_MAX_RUNS} runs of {job.name!r} already", where=str(job.output.dir))


def _make(path: Path) -> list[Path]:
    """Makes a directory with its parents; returns those that were missing, innermost first."""
    missing: list[Path] = []
    try:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _remove_empty(missing)
        raise _not_writable(path, error) from None
    return missing


def _remove_empty(folders: Sequence[Path]) -> None:
    """Removes directories, innermost first, up to the first that cannot be removed."""
    for folder in folders:
        try:
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return


def _held_by(path: Path) -> str:
    """Which run a directory holds, in a few words."""
    try:
        lines = (path / "job.yaml").read_text("utf-8").splitlines()
        name = next(line.removeprefix("name:").strip() for line in lines if line.startswith("name:"))
    except (OSError, ValueError, StopIteration):
        return "a run"
    return f"a run of job {name!r} ({replaced.state_of(path)})"


def _not_writable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"run directory cannot be written: {error.strerror}",
        where=str(path),
        do="choose another with --run-dir or output.dir",
    )

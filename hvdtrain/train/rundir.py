"""The run directory: where one run's files lie, who may write there, and how.

Imports no torch: the launcher makes the directory before any rank starts.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvdtrain.config import Job
from hvdtrain.errors import InputError

# Everything that a run writes; only these are ever removed.
FILES = ("job.yaml", "plan.json", "metrics.jsonl", "profile.json", "report.html", "status.json")
FOLDERS = ("events", "logs", "checkpoints")
_MAX_RUNS = 100_000


@dataclass
class RunDirectory:
    """A directory of one run.

    Attributes:
        path: The directory.
        made: The directories that were made for it, innermost first; ``discard`` removes them.
        lock: Descriptor that marks the directory as in use while this process lives.
    """

    path: Path
    made: list[Path] = field(default_factory=list)
    lock: int | None = None

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

    def discard(self) -> None:
        """Removes what a run that never began has written, and nothing else."""
        for name in FILES:
            (self.path / name).unlink(missing_ok=True)
        for name in FOLDERS:
            shutil.rmtree(self.path / name, ignore_errors=True)
        _remove_empty(self.made)


def create_run_directory(job: Job, asked: Path | None, *, overwrite: bool = False) -> RunDirectory:
    """Makes the directory of a new run and writes ``job.yaml`` into it.

    Args:
        job: The job as resolved.
        asked: The directory that the user named; None takes the next free one of
            ``runs/NAME``, ``runs/NAME-2`` and so on.
        overwrite: Whether an earlier run's files in a named directory are removed first.

    Raises:
        InputError: It cannot be written, or already holds a run.
    """
    run = _claim(job, asked, overwrite)
    run.path = run.path.absolute()
    try:
        for name in FOLDERS:
            (run.path / name).mkdir(exist_ok=True)
        write_atomically(run.path / "job.yaml", job.as_yaml())
    except OSError as error:
        run.discard()
        raise _not_writable(run.path, error) from None
    return run


def _claim(job: Job, asked: Path | None, overwrite: bool) -> RunDirectory:
    if asked is None:
        return _next_free(job)
    made = _make(asked)
    run = RunDirectory(asked, made)
    held = [name for name in (*FILES, *FOLDERS) if (asked / name).exists()]
    if held and not overwrite:
        raise InputError(
            f"run directory already holds {_held_by(asked)}",
            where=str(asked),
            do="choose another --run-dir, or pass --overwrite to lose that run",
        )
    run.lock = _lock(asked)
    if held:
        run.discard()
    try:
        # Of two runs that start at once in one directory, this lets one in.
        run.logs.mkdir()
    except FileExistsError:
        raise InputError("another run is starting in this directory", where=str(asked)) from None
    except OSError as error:
        raise _not_writable(asked, error) from None
    return run


def _lock(path: Path) -> int | None:
    """Marks a directory as in use until this process ends; None where its file system cannot.

    Raises:
        InputError: A run that is still going on holds it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise InputError(
            "a run is going on in this directory", where=str(path), do="choose another --run-dir"
        ) from None
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


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
        return RunDirectory(path, [path, *parents], _lock(path))
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
        state = json.loads((path / "status.json").read_text("utf-8"))["state"]
        name = next(
            line.removeprefix("name:").strip()
            for line in (path / "job.yaml").read_text("utf-8").splitlines()
            if line.startswith("name:")
        )
    except (OSError, ValueError, KeyError, StopIteration, TypeError):
        return "a run"
    return f"a run of job {name!r} ({state})"


def _not_writable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"run directory cannot be written: {error.strerror}",
        where=str(path),
        do="choose another with --run-dir or output.dir",
    )


def write_atomically(path: Path, text: str) -> None:
    """Writes a file beside its place, then renames it there."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, "utf-8")
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise

"""Opens the directory of a run to go on with it. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvdtrain.config import Job
from hvdtrain.errors import InputError
from hvdtrain.files import write_atomically
from hvdtrain.jobfile import load_job
from hvdtrain.train import done, replaced
from hvdtrain.train.locking import lock_run
from hvdtrain.train.rundir import RunDirectory, create_run_directory

# What may differ between a run and its going on: how long, how fast, what is told. All else decides which
# numbers come out.
_FREE = frozenset(
    {
        "name",
        "epochs",
        "steps",
        "output",
        "checkpoint",
        "preemption",
        "stall",
        "resume",
        "backend",
        "tuning",
        "metrics",
        "data.workers",
        "batch.accumulate",
        "batch.uneven",
        "gradients.on_nan",
    }
)


def open_run_directory(job: Job, asked: Path | None, *, overwrite: bool = False) -> RunDirectory:
    """The directory of a new run, or with ``resume: auto`` of the run that it goes on with.

    Args:
        job: The job as resolved.
        asked: The directory that the user named; if None, with ``resume: auto`` always ``runs/NAME``, and
            otherwise the next free name.
        overwrite: Whether an earlier run in a named directory is lost.

    Returns:
        The directory. Of one whose ``result`` is known nothing is written: the run has nothing left to do.

    Raises:
        InputError: It cannot be used, or holds a run of a job that differs in more than it may.
    """
    if job.resume == "never":
        return create_run_directory(job, asked, overwrite=overwrite)
    path = asked or job.output.dir / job.name
    try:
        is_new = overwrite or not (replaced.is_aside(path) or replaced.state_of(path))
        run = RunDirectory(path.absolute(), lock=None if is_new else lock_run(path))
    except OSError as error:
        raise _not_usable(path, error) from None
    if is_new:
        return create_run_directory(job, path, overwrite=overwrite)
    try:
        _take_up(run, job)
    except InputError:
        run.unlock()
        raise
    return run


def _take_up(run: RunDirectory, job: Job) -> None:
    """Makes a locked directory that of the run that it holds, going on."""
    path = run.path
    try:
        if run.replaces:
            # Whoever replaced that run was killed before it began.
            replaced.put_back(path)
        _check_kinds(path)
        earlier = _earlier_job(path)
        _check_same(path, earlier, job)
        run.earlier = replaced.status_of(path) or {"schema": 1, "state": "unknown"}
        run.result = done.result_of(path, run.earlier, earlier, job)
        if run.result is not None:
            return
        run.write_status("starting", resumed=True)
        write_atomically(path / "job.yaml", job.as_yaml())
        for folder in (run.events, run.logs, run.checkpoints):
            folder.mkdir(exist_ok=True)
    except OSError as error:
        raise _not_usable(path, error) from None


def _not_usable(path: Path, error: OSError) -> InputError:
    return InputError(f"run directory cannot be written: {error.strerror}", where=str(path))


def _check_kinds(path: Path) -> None:
    """Refuses folders where a run has files, and the other way round, before anything is written."""
    for name in (*replaced.FILES, *replaced.FOLDERS):
        entry, has_folder = path / name, name in replaced.FOLDERS
        if entry.exists() and entry.is_dir() != has_folder:
            found, right = ("file", "folder") if has_folder else ("folder", "file")
            raise InputError(
                f"the run has a {found} of this name, where its {right} belongs",
                where=str(entry),
                do="move it away",
            )


def _earlier_job(path: Path) -> Job:
    try:
        return load_job(path / "job.yaml")
    except InputError as error:
        raise InputError(
            f"the job of the run cannot be read: {error}",
            do="choose another --run-dir, or pass --overwrite in place of --resume to lose that run",
        ) from None


def _check_same(path: Path, earlier: Job, job: Job) -> None:
    before, now = _leaves(earlier), _leaves(job)
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key) and not _is_free(key):
            raise InputError(
                f"the run has {key} {before.get(key)!r}, the job that is to go on with it {now.get(key)!r}",
                where=str(path),
                do=f"give {key} as it was, choose another --run-dir, or pass --overwrite in place of "
                "--resume to lose that run",
            )


def _is_free(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in _FREE)


def _leaves(job: Job) -> dict[str, Any]:
    """Every value of a job by its dotted key."""
    leaves: dict[str, Any] = {}

    def walk(value: Any, key: str) -> None:
        if isinstance(value, Mapping) and value:
            for name, inner in value.items():
                walk(inner, f"{key}.{name}" if key else str(name))
        else:
            leaves[key] = value

    walk(job.model_dump(mode="json", by_alias=True), "")
    return leaves

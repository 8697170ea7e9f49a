"""The files of a run, and where an earlier run's wait while a new one takes their place.

``--overwrite`` loses a run only when the new one has taken a step. Until then the earlier run's files lie
in a hidden folder of the run directory, so that a job that is refused, or killed, leaves them to be put back.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

# Everything that a run writes; only these are ever moved or removed.
FILES = (
    "job.yaml",
    "plan.json",
    "metrics.jsonl",
    "metrics.unreadable",
    "profile.json",
    "advice.json",
    "report.html",
    "status.json",
    "autopsy.txt",
)
FOLDERS = ("events", "logs", "checkpoints", ".autopsy")
# A whole run that waits; one of which a part is here and the rest in its place; one that is being removed.
_WHOLE, _PART, _GOING = ".replaced", ".replaced-part", ".replaced-going"


def status_of(path: Path) -> dict[str, Any]:
    """What ``status.json`` tells; empty where there is none, or one that a crash left without content."""
    try:
        status = json.loads((path / "status.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return status if isinstance(status, dict) and isinstance(status.get("state"), str) else {}


def state_of(path: Path) -> str | None:
    """The state of the run that a directory holds; None where it holds none.

    Folders named logs or events, or a job file, make no run: they may be anybody's.
    """
    if status := status_of(path):
        return str(status["state"])
    is_planned = all((path / name).is_file() for name in ("job.yaml", "plan.json"))
    return "unknown" if is_planned else None


def strangers(path: Path) -> list[str]:
    """Names of what a directory holds that is not ours, in order."""
    return sorted(entry.name for entry in path.iterdir() if entry.name not in (_WHOLE, _PART, _GOING))


def set_aside(path: Path) -> None:
    """Moves the files of the run that a directory holds out of the way of a new one.

    Raises:
        OSError: They cannot be moved; those that were are back.
    """
    (path / _PART).mkdir()
    try:
        _move(path, path / _PART)
        (path / _PART).rename(path / _WHOLE)
    except OSError:
        _bring_back(path)
        raise


def is_aside(path: Path) -> bool:
    """Whether a directory holds a run that was set aside."""
    return (path / _WHOLE).is_dir() or (path / _PART).is_dir()


def put_back(path: Path) -> None:
    """Puts a run that was set aside, if there is one, back in its place, and removes what took that."""
    if (path / _WHOLE).is_dir():
        clear(path)
        (path / _WHOLE).rename(path / _PART)
    if (path / _PART).is_dir():
        _bring_back(path)


def lose(path: Path) -> None:
    """Removes the run that was set aside; nothing where there is none."""
    if (path / _WHOLE).is_dir():
        # Renamed first: a removal that is cut short must leave nothing that looks like a run to put back.
        shutil.rmtree(path / _GOING, ignore_errors=True)
        (path / _WHOLE).rename(path / _GOING)
    shutil.rmtree(path / _GOING, ignore_errors=True)


def clear(path: Path) -> None:
    """Removes the files of the run in a directory, and nothing else."""
    for name in FILES:
        (path / name).unlink(missing_ok=True)
    for name in FOLDERS:
        shutil.rmtree(path / name, ignore_errors=True)


def _bring_back(path: Path) -> None:
    _move(path / _PART, path)
    (path / _PART).rmdir()


def _move(source: Path, target: Path) -> None:
    for name in (*FILES, *FOLDERS):
        if (source / name).exists():
            (source / name).rename(target / name)

"""What was submitted from here: Slurm forgets a job some minutes after its end, its log stays."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path


def record_job(job: str, log: str, name: str, environ: Mapping[str, str]) -> None:
    """Notes a job's log; a home that cannot be written keeps no note, and the job runs all the same.

    Args:
        job: The job's id.
        log: The log's path in sbatch's words, with ``%j`` and the like.
        name: The job's name.
        environ: The caller's environment.
    """
    path = _path(job, environ)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"log": str(Path(log).absolute()), "name": name}))
    except OSError:
        return


def recorded_logs(job: str, environ: Mapping[str, str]) -> list[str]:
    """The log files of a job that was submitted from here; none for any other."""
    array, _, element = job.partition("_")
    try:
        told = json.loads(_path(array, environ).read_text())
    except (OSError, ValueError):
        return []
    values = {"j": job, "A": array, "a": element, "x": told["name"], "%": "%"}
    if element or "%a" not in told["log"]:
        return [re.sub(r"%([jAax%])", lambda match: values[match[1]], told["log"])]
    folder, _, pattern = told["log"].rpartition("/")
    glob = re.sub(r"%(.)", lambda match: "*" if match[1] == "a" else values.get(match[1], "*"), pattern)
    return sorted(str(path) for path in Path(folder).glob(glob))


def _path(job: str, environ: Mapping[str, str]) -> Path:
    root = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME", "/"), ".local", "state")
    return Path(root, "hvdtrain", "jobs", f"{job}.json")

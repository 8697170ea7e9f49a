"""The checkpoints of a run, as files: which there are, which are whole, which may go.

A checkpoint is a folder ``step-N``: the files of the state, and a manifest with their sizes and checksums
that is written last. All of it is written beside its place under a name with a leading dot, synced and then
renamed. Imports no torch: a login node lists checkpoints too.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtrain.files import sha256_of, sync, write_atomically

STATE = "state.pt"
MODEL = "model.safetensors"
MANIFEST = "manifest.json"
LATEST = "latest"
_NAME = re.compile(r"step-(\d+)")
_BESIDE = re.compile(r"\.step-\d+\..*")


@dataclass(frozen=True)
class Stored:
    """A folder that is named as a checkpoint is.

    Attributes:
        path: The folder.
        step: Optimizer steps that it was made after.
        facts: What its manifest tells besides the files: ``epoch``, ``metrics`` and so on.
        num_bytes: Of all its files together, as the manifest tells.
        fault: Why it cannot be used; empty where nothing was found.
    """

    path: Path
    step: int
    facts: dict[str, Any]
    num_bytes: int = 0
    fault: str = ""


def stored_in(folder: Path, *, whole: bool = False) -> list[Stored]:
    """The checkpoints of a run, newest first.

    Args:
        folder: The run's ``checkpoints`` folder; one that is not there holds none.
        whole: Whether to compare checksums too, which reads all of them.
    """
    names = [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)]
    found = [look_at(path, whole=whole) for path in names]
    return sorted(found, key=lambda stored: stored.step, reverse=True)


def look_at(path: Path, *, whole: bool) -> Stored:
    """What a checkpoint's manifest tells, and whether its files are what it says."""
    matched = _NAME.fullmatch(path.name)
    step = int(matched[1]) if matched else -1
    try:
        manifest = json.loads((path / MANIFEST).read_text("utf-8"))
        files = {str(name): dict(facts) for name, facts in manifest.pop("files").items()}
        step = int(manifest["step"]) if not matched else step
    except FileNotFoundError:
        return Stored(path, step, {}, fault="no manifest: it was not finished")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Stored(path, step, {}, fault=f"{MANIFEST} cannot be read: {_one_line(error)}")
    size = sum(int(facts.get("bytes", 0)) for facts in files.values())
    fault = _fault_of(path, files, whole)
    if not fault and matched and manifest.get("step") != step:
        fault = f"its manifest is of step {manifest.get('step')}"
    return Stored(path, step, manifest, size, fault)


def newest_whole(folder: Path) -> tuple[Stored | None, list[Stored]]:
    """The newest checkpoint whose checksums are right, and the newer ones that were passed over."""
    passed_over: list[Stored] = []
    for stored in stored_in(folder):
        checked = stored if stored.fault else look_at(stored.path, whole=True)
        if not checked.fault:
            return checked, passed_over
        passed_over.append(checked)
    return None, passed_over


def commit(beside: Path, target: Path, facts: dict[str, Any]) -> None:
    """Finishes a checkpoint: syncs its files, writes the manifest and gives it its name.

    Args:
        beside: The folder as written, on the same file system.
        target: ``step-N``; what is there already is kept if it is whole, and hears only what was measured
            since; it is replaced otherwise.
        facts: For the manifest, besides sizes and checksums.
    """
    files = {}
    for path in sorted(beside.iterdir()):
        sync(path)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
    write_atomically(beside / MANIFEST, json.dumps({"schema": 1, **facts, "files": files}, indent=2) + "\n")
    sync(beside)
    if target.exists():
        # A whole one of the same step is as good, and never out of its place.
        if not look_at(target, whole=True).fault:
            shutil.rmtree(beside)
            add_metrics(target, facts.get("metrics") or {})
            return
        _remove(target)
    beside.rename(target)
    sync(target.parent)  # makes the rename itself durable
    # A hint for people and scripts; nothing here reads it.
    write_atomically(target.parent / LATEST, f"{target.name}\n")


def add_metrics(path: Path, metrics: Mapping[str, Any]) -> None:
    """Tells in a checkpoint's manifest what was measured after it was made; readers see the old or the new.

    Raises:
        OSError: The manifest cannot be read or written.
        ValueError: It is none.
    """
    manifest = json.loads((path / MANIFEST).read_text("utf-8"))
    if metrics and manifest.get("metrics") != metrics:
        told = {**manifest, "metrics": dict(metrics)}
        write_atomically(path / MANIFEST, json.dumps(told, indent=2) + "\n")
        sync(path)


def has_right_checksums(stored: Stored) -> bool:
    """Whether a checkpoint is whole to the last byte; reads all of it."""
    return not stored.fault and not look_at(stored.path, whole=True).fault


def prune(
    folder: Path,
    keep_last: int,
    keep: Collection[int] = (),
    is_whole: Callable[[Stored], bool] = has_right_checksums,
) -> list[Path]:
    """Removes old checkpoints; the newest whole ones stay, and those of the steps in ``keep``.

    Args:
        folder: The run's ``checkpoints`` folder.
        keep_last: Whole ones that stay. A newer one that is damaged takes nobody's place, and stays too.
        keep: Steps of further ones.
        is_whole: Looks at one that would stay, and in whose stead older ones would go.

    Returns:
        What was removed, by its old name.
    """
    num_kept, removed = 0, []
    for stored in stored_in(folder):
        if stored.fault:
            continue
        if num_kept < keep_last:
            num_kept += is_whole(stored)
        elif stored.step not in keep:
            _remove(stored.path)
            removed.append(stored.path)
    return removed


def _remove(path: Path) -> None:
    """Takes its name first: what a removal that is cut short leaves is no checkpoint, and stale."""
    going = path.with_name(f".{path.name}.pruned")
    shutil.rmtree(going, ignore_errors=True)
    path.rename(going)
    shutil.rmtree(going, ignore_errors=True)


def remove_stale(folder: Path) -> list[str]:
    """Removes what was being written or removed by who was killed; call it only while nobody is at work.

    Returns:
        The names of what was removed.
    """
    stale = [path for path in folder.glob(".step-*") if _BESIDE.fullmatch(path.name)]
    for path in stale:
        shutil.rmtree(path, ignore_errors=True)
    return sorted(path.name for path in stale)


def _fault_of(path: Path, files: dict[str, dict[str, Any]], whole: bool) -> str:
    if not files:
        return "its manifest names no files"
    for name, facts in files.items():
        file = path / name
        if Path(name).name != name:
            return f"its manifest names {name!r}, which is no file of its own"
        try:
            size = file.stat().st_size
            if size != facts.get("bytes"):
                return f"{name} has {size:,} bytes, its manifest says {facts.get('bytes'):,}"
            if whole and sha256_of(file) != facts.get("sha256"):
                return f"the checksum of {name} is not its manifest's"
        except FileNotFoundError:
            return f"{name} is missing"
        except (OSError, TypeError, ValueError) as error:
            return f"{name} cannot be read: {_one_line(error)}"
    return ""


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__

"""``hvdtrain checkpoints``: lists, checks, prunes and exports the checkpoints of a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hvdtrain.cli.option_types import FilledPath
from hvdtrain.errors import ExitCode, InputError

if TYPE_CHECKING:
    from hvdtrain.train.store import Stored

_PIECE = 1 << 20


@click.command()
@click.argument("run", type=FilledPath())
@click.option("--verify", is_flag=True, help="Compare checksums too; exit code 3 if one is damaged.")
@click.option(
    "--prune", type=click.IntRange(min=1), metavar="N", help="Remove all but the N newest whole ones."
)
@click.option(
    "--export", type=FilledPath(), metavar="FILE", help="Copy the newest model to FILE (safetensors)."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(run: Path, verify: bool, prune: int | None, export: Path | None, as_json: bool) -> int:
    """List the checkpoints of RUN, a run directory, newest first."""
    from hvdtrain.train.store import stored_in

    folder = _checkpoints_of(run)
    if export:
        _check_target(export)
    removed = _prune(run, folder, prune) if prune else []
    found = stored_in(folder, whole=verify or export is not None)
    exported = _export(found, folder, export) if export else None
    if as_json:
        rows = [
            {
                "path": str(one.path),
                "step": one.step,
                "bytes": one.num_bytes,
                "fault": one.fault or None,
                **{key: one.facts.get(key) for key in ("epoch", "consumed", "metrics")},
            }
            for one in found
        ]
        told = {"path": str(export), "step": exported.step} if exported else None
        document = {"schema": 1, "run": str(run), "checkpoints": rows, "removed": removed, "exported": told}
        print(json.dumps(document))
    else:
        _show(found, removed)
        if exported:
            print(f"exported {exported.path.name} to {export}")
    return int(ExitCode.GATE if verify and any(one.fault for one in found) else ExitCode.DONE)


def _checkpoints_of(run: Path) -> Path:
    folder = run / "checkpoints"
    if not folder.is_dir():
        raise InputError(
            "no run directory: it has no folder checkpoints", where=str(run), do="name one such as runs/NAME"
        )
    return folder


def _prune(run: Path, folder: Path, keep: int) -> list[str]:
    """Removes old ones, unless the run is going on: its own writer prunes."""
    from hvdtrain.train.locking import lock_run, unlock
    from hvdtrain.train.store import prune, remove_stale

    lock = lock_run(run)
    try:
        return [*(path.name for path in prune(folder, keep)), *remove_stale(folder)]
    except OSError as error:
        raise InputError(f"cannot be removed: {error.strerror}", where=str(error.filename)) from None
    finally:
        unlock(lock)


def _check_target(target: Path) -> None:
    """Refuses a device, a pipe or a folder: the file that is written takes the place of what has its name."""
    try:
        is_other = target.exists() and not target.is_file()
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(target)) from None
    if is_other:
        raise InputError(
            "is there already, and no regular file", where=str(target), legal="a new or a regular file"
        )
    if target.suffix != ".safetensors":
        _note(f"the format is safetensors, which the name {target.name} does not tell")


def _note(text: str) -> None:
    print(f"hvdtrain: note: {text}", file=sys.stderr)


def _export(found: list[Stored], folder: Path, target: Path) -> Stored:
    """Copies the newest model that is whole; returns the checkpoint that it is of."""
    from hvdtrain.files import sync
    from hvdtrain.train.store import MODEL

    whole = next((one for one in found if not one.fault), None)
    if whole is None:
        raise InputError("no checkpoint is whole", where=str(folder))
    for one in found[: found.index(whole)]:
        _note(f"{one.path.name} is damaged and passed over: {one.fault}")
    beside = target.with_name(f".{target.name}.part")
    try:
        with beside.open("wb") as file:
            file.writelines(_content(whole.path / MODEL))
        sync(beside)
        beside.replace(target)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(target)) from None
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
    return whole


def _content(path: Path) -> Iterator[bytes]:
    """A file in pieces; what goes wrong with it is not taken for a fault of where they are written."""
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                yield piece
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None


def _show(found: list[Stored], removed: list[str]) -> None:
    for name in removed:
        print(f"removed {name}")
    if not found:
        print("no checkpoints")
    for one in found:
        measured = one.facts.get("metrics") or {}
        told = "  ".join(f"{key.replace('_', ' ')} {value:.4f}" for key, value in measured.items() if value)
        state = f"DAMAGED: {one.fault}" if one.fault else told
        print(f"{one.path.name:<14}{_size(one.num_bytes):>13}  {state}".rstrip())


def _size(num_bytes: int) -> str:
    """A size in kB below 1 MB, and MB above; both are powers of 1000."""
    return f"{num_bytes / 1e3:.1f} kB" if num_bytes < 1e6 else f"{num_bytes / 1e6:.1f} MB"

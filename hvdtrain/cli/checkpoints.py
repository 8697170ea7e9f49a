"""``hvdtrain checkpoints``: lists, checks, prunes and exports the checkpoints of a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hvdtrain.cli.documents import MODEL
from hvdtrain.cli.option_types import FilledPath
from hvdtrain.cli.targets import check_target
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
    check_target("--export", export, *_models_of(folder), kind=MODEL)
    if export and export.suffix != ".safetensors":
        _note(f"the format is safetensors, which the name {export.name} does not tell")
    removed = _prune(run, folder, prune) if prune else []
    is_read = verify or export is not None
    found = stored_in(folder, whole=is_read)
    exported = _export(found, folder, export) if export else None
    if as_json:
        rows = [
            {
                "path": str(one.path),
                "step": one.step,
                "bytes": one.num_bytes,
                "fault": one.fault or None,
                "whole": not one.fault if is_read or one.fault else None,
                **{key: one.facts.get(key) for key in ("epoch", "consumed", "metrics")},
            }
            for one in found
        ]
        told = {"path": str(export), "step": exported.step} if exported else None
        document = {"schema": 1, "run": str(run), "checkpoints": rows, "removed": removed, "exported": told}
        print(json.dumps(document))
    else:
        _show(found, removed, is_read=is_read)
        if exported:
            print(f"exported {exported.path.name} to {export}")
    return int(ExitCode.GATE if verify and any(one.fault for one in found) else ExitCode.DONE)


def _checkpoints_of(run: Path) -> Path:
    folder = run / "checkpoints"
    try:
        if not folder.is_dir():
            do = "name one such as runs/NAME"
            raise InputError("no run directory: it has no folder checkpoints", where=str(run), do=do)
        next(folder.iterdir(), None)  # who may not read it would be told of no checkpoints
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(error.filename or run)) from None
    return folder


def _models_of(folder: Path) -> list[Path]:
    """The models of the checkpoints: none is replaced by a copy of another."""
    from hvdtrain.train.store import MODEL

    return [path / MODEL for path in folder.iterdir()]


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


def _show(found: list[Stored], removed: list[str], *, is_read: bool) -> None:
    for name in removed:
        print(f"removed {name}")
    if not found:
        print("no checkpoints")
    for one in found:
        measured = one.facts.get("metrics") or {}
        told = "  ".join(f"{key.replace('_', ' ')} {value:.4f}" for key, value in measured.items() if value)
        # What was only listed is not called whole: its content has not been read.
        state = f"DAMAGED: {one.fault}" if one.fault else "  ".join(filter(None, ("whole" * is_read, told)))
        print(f"{one.path.name:<14}{_size(one.num_bytes):>13}  {state}".rstrip())


def _size(num_bytes: int) -> str:
    """A size in kB below 1 MB, and MB above; both are powers of 1000."""
    return f"{num_bytes / 1e3:.1f} kB" if num_bytes < 1e6 else f"{num_bytes / 1e6:.1f} MB"

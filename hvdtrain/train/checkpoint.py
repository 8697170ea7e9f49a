"""Saves what a run has learned, whole or not at all.

A checkpoint is a folder: the state first, the manifest with sizes and checksums last, all of
it written beside its place, synced to the disk and then renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

STATE = "state.pt"
MANIFEST = "manifest.json"


def save_checkpoint(folder: Path, step: int, state: Mapping[str, Any]) -> Path:
    """Writes ``folder/step-N``; call it on one rank.

    Args:
        folder: The run's ``checkpoints`` folder.
        step: Number of optimizer steps taken.
        state: What ``load_checkpoint`` shall give back: tensors, numbers, texts and containers.

    Returns:
        The checkpoint's folder.
    """
    target = folder / f"step-{step}"
    beside = folder / f".step-{step}.{os.getpid()}"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        with (beside / STATE).open("wb") as file:
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())
        manifest = {"schema": 1, "step": step, "files": {STATE: _facts(beside / STATE)}}
        with (beside / MANIFEST).open("w") as text:
            json.dump(manifest, text, indent=2)
            text.flush()
            os.fsync(text.fileno())
        if target.exists():
            shutil.rmtree(target)
        beside.rename(target)
        _sync_folder(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target


def load_checkpoint(folder: Path) -> dict[str, Any]:
    """Reads the state of a checkpoint's folder; runs no code that the file may hold.

    Raises:
        ValueError: The manifest is missing, a file is not what it says, or wants code to be run.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        expected = manifest["files"][STATE]
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{folder}: no complete manifest: {error}") from None
    if _facts(folder / STATE) != expected:
        raise ValueError(f"{folder / STATE}: size or checksum differs from the manifest")
    try:
        return dict(torch.load(folder / STATE, map_location="cpu", weights_only=True))
    except pickle.UnpicklingError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{folder / STATE}: holds more than tensors and plain values: {reason}") from None


def _facts(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _sync_folder(folder: Path) -> None:
    """Makes the rename itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

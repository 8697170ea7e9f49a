"""What a checkpoint holds, and its way to the disk and back.

The model is ``model.safetensors``, which other tools read too; the rest is ``state.pt``, tensors and plain
values only. ``store.py`` knows the folder around them.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from hvdtrain.train.plain import NOT_PLAIN, UnreadableError, as_plain, check_readable, wanted
from hvdtrain.train.store import MODEL, STATE, commit, look_at


class Snapshot:
    """A copy of a state in memory of its own, taken at once, so that training may go on.

    Its memory is used again for the next copy.
    """

    def __init__(self) -> None:
        self._memory: dict[tuple[object, ...], torch.Tensor] = {}

    def take(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state with all tensors copied to the CPU, and NumPy's single numbers as Python's.

        What the last call gave is overwritten.
        """
        copied: dict[str, Any] = self._copy(dict(state), ())
        for device in {value.device for value in _tensors(state) if value.is_cuda}:
            torch.cuda.synchronize(device)
        return copied

    def _copy(self, value: Any, place: tuple[object, ...]) -> Any:
        if isinstance(value, torch.Tensor):
            return self._copy_tensor(value.detach(), place)
        if isinstance(value, Mapping):
            return {as_plain(key): self._copy(inner, (*place, key)) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            copied = [self._copy(inner, (*place, index)) for index, inner in enumerate(value)]
            return copied if isinstance(value, list) else tuple(copied)
        return as_plain(value)

    def _copy_tensor(self, tensor: torch.Tensor, place: tuple[object, ...]) -> torch.Tensor:
        memory = self._memory.get(place)
        if memory is None or memory.shape != tensor.shape or memory.dtype != tensor.dtype:
            memory = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._memory[place] = memory
        return memory.copy_(tensor, non_blocking=True)


def save_checkpoint(folder: Path, step: int, state: Mapping[str, Any], **facts: Any) -> Path:
    """Writes ``folder/step-N``, whole or not at all; call it on one rank.

    Args:
        folder: The run's ``checkpoints`` folder.
        step: Number of optimizer steps taken.
        state: What ``load_checkpoint`` shall give back: tensors, numbers, texts and containers; ``model`` is
            a module's state.
        facts: What the manifest shall tell besides.

    Returns:
        The checkpoint's folder.

    Raises:
        ValueError: ``load_checkpoint`` could not read it again; says what of it.
    """
    check_readable(state)
    target = folder / f"step-{step}"
    beside = folder / f".step-{step}.{os.getpid()}"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        rest = dict(state)
        model = dict(rest.pop("model", {}))
        tensors = {name: value.contiguous() for name, value in model.items() if _is_plain(value)}
        _write_model(_unshared(tensors), beside / MODEL)
        rest["model"] = {name: value for name, value in model.items() if name not in tensors}
        _write_state(rest, beside / STATE)
        # Its writer makes a file that only the owner may read.
        (beside / MODEL).chmod((beside / STATE).stat().st_mode)
        commit(beside, target, {"step": step, **facts})
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target


def _write_model(tensors: dict[str, torch.Tensor], path: Path) -> None:
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        if code := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error
        raise


def _write_state(state: dict[str, Any], path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        writer = _Writer(file)
        try:
            torch.save(state, io.BufferedWriter(writer))
        except (RuntimeError, OSError):
            if writer.error:
                # PyTorch tells of its place in the file only.
                raise OSError(writer.error.errno, writer.error.strerror, str(path)) from writer.error
            raise


class _Writer(io.RawIOBase):
    """Writes to a file, and keeps why it could not."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise


def load_checkpoint(folder: Path) -> dict[str, Any]:
    """Reads the state of a checkpoint's folder; runs no code that a file may hold.

    Raises:
        ValueError: The manifest is missing, or a file is not what it says.
        UnreadableError: It is as it was written, but wants code to be run.
    """
    stored = look_at(folder, whole=True)
    if stored.fault:
        raise ValueError(f"{folder}: {stored.fault}")
    try:
        state = dict(torch.load(folder / STATE, map_location="cpu", weights_only=True))
        state["model"] = {**load_file(folder / MODEL), **state.get("model", {})}
    except pickle.UnpicklingError as error:
        raise UnreadableError(f"{folder / STATE}: {NOT_PLAIN}: {wanted(error)}") from None
    except (RuntimeError, SafetensorError, TypeError) as error:
        raise ValueError(f"{folder}: cannot be read: {' '.join(str(error).split())}") from None
    return state


def _is_plain(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_sparse and not value.is_quantized


def _unshared(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The format has no two names for one memory: tied weights are written once for each name."""
    seen: set[int] = set()
    unshared = {}
    for name, tensor in tensors.items():
        address = tensor.untyped_storage().data_ptr()
        unshared[name] = tensor.clone() if address in seen and tensor.numel() else tensor
        seen.add(address)
    return unshared


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [tensor for part in inner for tensor in _tensors(part)]

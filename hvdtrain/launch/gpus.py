"""This machine's GPUs, by the driver's own listing: no CUDA runtime is started, no library asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

# The driver lists each GPU here, whether or not a container or a cgroup lets it be used.
DRIVER_GPUS = Path("/proc/driver/nvidia/gpus")
_HIDDEN = frozenset({"", "-1", "nodevfiles", "none", "void"})


class Gpu(NamedTuple):
    """One GPU: its UUID, empty where the driver does not tell, and its PCI address."""

    uuid: str
    bus: str

    @property
    def key(self) -> str:
        """What tells it apart from the others of its host."""
        return self.uuid or self.bus


def may_open(minor: int) -> bool | None:
    """Whether this process may use the GPU with that device file; None where there is no such file."""
    try:
        os.close(os.open(f"/dev/nvidia{minor}", os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return None
    except OSError:
        return False
    return True


def visible_gpus(
    environ: Mapping[str, str],
    listing: Path | None = None,
    may_use: Callable[[int], bool | None] = may_open,
) -> list[Gpu]:
    """The GPUs that a process with this environment would see, in its order.

    Args:
        environ: CUDA_VISIBLE_DEVICES narrows what the process may use: indices, UUIDs or MIG names; as the
            CUDA runtime does, reading stops at the first word that names nothing.
        listing: The driver's folder with an entry per GPU, named by PCI address; None takes this machine's.
        may_use: Tells of a GPU's device number whether the process may open it.
    """
    listing = DRIVER_GPUS if listing is None else listing
    entries = sorted(listing.iterdir()) if listing.is_dir() else []
    present = _usable([_read(entry) for entry in entries], may_use)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not present:
        return present
    chosen: list[Gpu] = []
    for word in visible.split(","):
        gpu = _named(word.strip(), present)
        if gpu is None:
            break
        chosen.append(gpu)
    return chosen


def count_gpus(environ: Mapping[str, str], listing: Path | None = None) -> int:
    """How many GPUs a process with this environment would see."""
    return len(visible_gpus(environ, listing))


def _usable(listed: list[tuple[Gpu, int | None]], may_use: Callable[[int], bool | None]) -> list[Gpu]:
    """Those that may be opened: CUDA counts no others, and its indices are relative to them.

    Slurm's ConstrainDevices shows each task one GPU of the node, and calls it 0 in every task.
    """
    told = [None if minor is None else may_use(minor) for _, minor in listed]
    if not any(answer is not None for answer in told):
        # The driver makes the device files when the first program needs them.
        return [gpu for gpu, _ in listed]
    return [gpu for (gpu, minor), may in zip(listed, told, strict=True) if may or minor is None]


def _named(word: str, present: list[Gpu]) -> Gpu | None:
    if word.lower() in _HIDDEN:
        return None
    if word.isdigit():
        return present[int(word)] if int(word) < len(present) else None
    if word.upper().startswith("MIG-"):
        return Gpu(word, "")
    matches = [gpu for gpu in present if gpu.uuid.startswith(word)]
    # Without the rights to see UUIDs the word is all that is known of the GPU.
    return matches[0] if matches else Gpu(word, "")


def _read(entry: Path) -> tuple[Gpu, int | None]:
    """One GPU and its device number; to some users the driver shows question marks in place of the UUID."""
    try:
        lines = (entry / "information").read_text().splitlines()
    except OSError:
        return Gpu("", entry.name), None
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    uuid, minor = told.get("GPU UUID", ""), told.get("Device Minor", "")
    return Gpu("" if "?" in uuid else uuid, entry.name), int(minor) if minor.isdigit() else None

"""This machine's GPUs, by the driver's own listing: no CUDA runtime is started, no library asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

# The driver lists each GPU here, whether or not a container lets it be used.
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


def visible_gpus(environ: Mapping[str, str], listing: Path = DRIVER_GPUS) -> list[Gpu]:
    """The GPUs that a process with this environment would see, in its order.

    Args:
        environ: CUDA_VISIBLE_DEVICES narrows what the driver has: indices, UUIDs or MIG names; as the CUDA
            runtime does, reading stops at the first word that names nothing.
        listing: The driver's folder with an entry per GPU, named by PCI address.
    """
    present = [_read(entry) for entry in sorted(listing.iterdir())] if listing.is_dir() else []
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


def count_gpus(environ: Mapping[str, str], listing: Path = DRIVER_GPUS) -> int:
    """How many GPUs a process with this environment would see."""
    return len(visible_gpus(environ, listing))


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


def _read(entry: Path) -> Gpu:
    """One GPU; to some users the driver shows question marks in place of the UUID."""
    try:
        lines = (entry / "information").read_text().splitlines()
    except OSError:
        return Gpu("", entry.name)
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    uuid = told.get("GPU UUID", "")
    return Gpu("" if "?" in uuid else uuid, entry.name)

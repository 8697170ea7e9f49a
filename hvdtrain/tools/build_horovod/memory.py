"""How much memory this process and its children may still take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class _Files:
    """Where a version of cgroups tells limit and use, in bytes."""

    limit: str
    usage: str
    cache: str


# Kernel documentation: admin-guide/cgroup-v2.rst and admin-guide/cgroup-v1/memory.rst
_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Files("memory.max", "memory.current", "inactive_file")


def free_memory_mib() -> int:
    """What is free on this machine, or left of the cgroup's limit (a container's, a Slurm job's), in MiB."""
    machine = psutil.virtual_memory().available >> 20
    try:
        membership = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    except OSError:
        return machine
    left = cgroup_memory_mib(membership, Path("/sys/fs/cgroup"))
    return machine if left is None else min(machine, left)


def cgroup_memory_mib(membership: str, root: Path) -> int | None:
    """What a process's cgroups leave of their memory limits, in MiB; None where nothing limits it.

    A group and all groups that it is in are asked. Cached file contents that were not read twice count as
    free, since the kernel gives them up first.

    Args:
        membership: The text of ``/proc/PID/cgroup``.
        root: Where cgroups are mounted, usually ``/sys/fs/cgroup``.
    """
    left = [
        free
        for folder, files in _groups(membership, root)
        if (free := _left_bytes(folder, files)) is not None
    ]
    return max(0, min(left)) >> 20 if left else None


def _groups(membership: str, root: Path) -> Iterator[tuple[Path, _Files]]:
    for line in membership.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if number == "0" and not controllers:
            base, files = root, _V2
        elif "memory" in controllers.split(","):
            base, files = root / "memory", _V1
        else:
            continue
        # In a container the path may be the host's: then only the mount's own root is there.
        group = base / name.strip("/")
        for folder in (group, *group.parents):
            yield folder, files
            if folder == base:
                break


def _left_bytes(folder: Path, files: _Files) -> int | None:
    try:
        limit = (folder / files.limit).read_text(encoding="ascii").strip()
        if limit == "max":
            return None
        usage = int((folder / files.usage).read_text(encoding="ascii"))
        stat = (folder / "memory.stat").read_text(encoding="ascii").split()
        cache = dict(zip(stat[::2], stat[1::2], strict=False)).get(files.cache, "0")
        return int(limit) - usage + int(cache)
    except (OSError, ValueError):
        return None

"""Where to compile, and with how many compilers: room on the disks and in memory."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hvdtrain.errors import InputError
from hvdtrain.tools.build_horovod.cache import Cache

# twice what builds with gcc 12 took at their peak: 363 MiB, with NCCL 449 MiB
_NEEDED_MIB = {"none": 768, "nccl": 1024}
# the wheel (25 MB), its copy while it is published, the logs and the source distribution
_NEEDED_CACHE_MIB = 128
# the largest file, mpi_ops_v2.cc, took 1.4 GiB
_MEMORY_PER_JOB_MIB = 1536


def default_jobs(cores: int, memory_mib: int) -> int:
    """As many compilers as this process may use cores, fewer where memory is short."""
    return max(1, min(cores, memory_mib // _MEMORY_PER_JOB_MIB))


def choose_scratch_parent(cache: Cache, gpu: str) -> Path:
    """The folder to compile in: the first of TMPDIR, /tmp, /var/tmp and the cache that is fit.

    A blank in the path breaks the build inside, so such folders are passed over.

    Raises:
        InputError: None is writable and without blanks, or none has the room.
    """
    _check_room(cache.horovod, _NEEDED_CACHE_MIB, "set HVDTRAIN_CACHE to a folder on a larger disk")
    system = (Path("/tmp"), Path("/var/tmp"))
    candidates = (Path(tempfile.gettempdir()), *system, cache.horovod)
    fit = [path for path in candidates if not has_blank(path) and os.access(path, os.W_OK | os.X_OK)]
    if not fit:
        raise InputError(
            "no folder to compile in: "
            + ", ".join(map(str, candidates))
            + " have blanks or cannot be written",
            do="set TMPDIR to a folder of your own whose path has no blank",
        )
    needed = _NEEDED_MIB[gpu]
    roomy = [path for path in fit if free_mib(path) >= needed]
    if not roomy:
        _check_room(fit[0], needed, "free some, or set TMPDIR to a folder on a larger disk")
    return roomy[0]


def has_blank(path: Path) -> bool:
    """Whether a path has white space in it."""
    return any(letter.isspace() for letter in str(path))


def free_mib(path: Path) -> int:
    """Free space, in MiB, where a folder is or will be."""
    existing = next(place for place in (path, *path.parents) if os.path.exists(place))
    return shutil.disk_usage(existing).free >> 20


def _check_room(path: Path, needed_mib: int, do: str) -> None:
    free = free_mib(path)
    if free < needed_mib:
        raise InputError(
            f"too little disk: {free} MiB are free, the build needs {needed_mib} MiB", where=str(path), do=do
        )

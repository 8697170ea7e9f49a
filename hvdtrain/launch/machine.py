"""The facts of this machine that a launch needs: its cores, its GPUs and its mpirun."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from hvdtrain.errors import InputError
from hvdtrain.launch.mpirun import ask_mpirun, find_mpirun
from hvdtrain.launch.plan import LaunchPlan, default_slots
from hvdtrain.topology.hosts import local_cluster, place

# The driver lists each GPU here, whether or not a container lets it be used.
_DRIVER_GPUS = Path("/proc/driver/nvidia/gpus")


def count_gpus(environ: Mapping[str, str], listing: Path = _DRIVER_GPUS) -> int:
    """GPUs that a process started here would see, without asking the CUDA runtime.

    Args:
        environ: CUDA_VISIBLE_DEVICES narrows what the driver has.
        listing: The driver's folder with an entry per GPU.
    """
    present = len(list(listing.iterdir())) if listing.is_dir() else 0
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not present:
        return present
    named = [word for word in visible.split(",") if word.strip() and word.strip() not in ("-1", "NoDevFiles")]
    return min(present, len(named))


def local_plan(size: int, slots: int | None, environ: Mapping[str, str]) -> LaunchPlan:
    """A plan for ``size`` ranks on this machine, whose program is still to be filled in.

    Args:
        size: Number of ranks.
        slots: Ranks that the user lets this machine take; None takes its GPUs, or else its cores.
        environ: The caller's environment.

    Raises:
        InputError: More ranks than slots.
    """
    cores = len(os.sched_getaffinity(0))
    num_gpus = count_gpus(environ)
    available = slots or default_slots(num_gpus, cores)
    if size > available:
        what = f"--slots {slots}" if slots else f"{num_gpus} GPUs" if num_gpus else f"{cores} CPU cores"
        raise InputError(
            f"-np {size}: more ranks than this machine's {available} slots ({what})",
            legal=f"-np 1 to {available}",
            do="" if slots else f"or pass --slots {size} to let ranks share them",
        )
    path = find_mpirun(environ, sys.prefix)
    return LaunchPlan(
        placement=place(local_cluster(available), size),
        program=(),
        python=sys.executable,
        environ=environ,
        mpi=ask_mpirun(path, environ) if path else None,
        cores=cores,
        uses_gpus=num_gpus > 0,
        is_root=os.geteuid() == 0,
    )

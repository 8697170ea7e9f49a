"""What MPI makes of a process, and which connections to MPI a Slurm offers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec

from hvdtrain.launch.srun import parse_mpi_list
from hvdtrain.process import command, run

_TIMEOUT_S = 60.0
_SIZE = "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"


def mpi_size(environ: Mapping[str, str]) -> int | None:
    """How many ranks MPI sees in this process's place: a child with the same environment asks it.

    MPI connects the ranks when they start, so every rank must call this.

    Returns:
        1 also where MPI does not start under this launcher; None where this Python has no MPI.
    """
    if find_spec("mpi4py") is None:
        return None
    try:
        ask = command(sys.executable, "-P", "-c", _SIZE)
        told = run(ask, timeout_s=_TIMEOUT_S, base_env=environ, keeps_descriptors=True)
    except TimeoutError:
        return 1
    last = told.stdout.split()[-1:]
    return int(last[0]) if told.returncode == 0 and last and last[0].isdecimal() else 1


def slurm_mpi_types(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The types that ``srun --mpi=list`` names; none where there is no srun."""
    try:
        told = run(command("srun", "--mpi=list"), timeout_s=_TIMEOUT_S, base_env=environ)
    except (OSError, TimeoutError):
        return ()
    return parse_mpi_list(told.stdout + told.stderr)

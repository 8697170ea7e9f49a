"""Which engine a job gets, decided without importing any."""

from __future__ import annotations

import mmap
import os
from importlib.util import find_spec
from pathlib import Path

from hvdtrain.errors import InputError

# For jobs and scripts alike: an engine does not know which of them it serves.
DDP_ADVICE = "take ddp (a job: --set backend=ddp; a script: start(backend='ddp') or HVDTRAIN_BACKEND=ddp)"
BUILD_ADVICE = f"build it with `hvdtrain build-horovod`, or {DDP_ADVICE}"


def horovod_is_built() -> bool:
    """Whether a Horovod with its PyTorch library is installed in this environment.

    Looks at files only: importing it would load torch and MPI.
    """
    return bool(_libraries())


def horovod_has_gloo() -> bool:
    """Whether the installed Horovod was built with Gloo; looks at files only.

    The name of the variable that only its Gloo code reads stands in its library.
    """
    for path in _libraries():
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
            if library.find(b"HOROVOD_GLOO_RENDEZVOUS_ADDR") >= 0:
                return True
    return False


def _libraries() -> list[Path]:
    spec = find_spec("horovod")
    folders = spec.submodule_search_locations if spec else None
    return [path for folder in folders or [] for path in Path(folder, "torch").glob("mpi_lib_v2*.so")]


def choose_backend(asked: str, size: int) -> tuple[str, str]:
    """The engine's name and, where it was not simply the one asked for, why.

    Args:
        asked: ``auto``, ``horovod``, ``ddp`` or ``single``.
        size: Number of ranks.

    Raises:
        InputError: Horovod is asked for and not built; ``single`` is asked for on several ranks.
    """
    if asked == "horovod" and not horovod_is_built():
        raise InputError("backend: horovod is not built in this environment", do=BUILD_ADVICE)
    if asked == "single" and size > 1:
        raise InputError(f"backend: single trains on one rank, not on {size}", legal="horovod, ddp")
    if asked != "auto":
        return asked, ""
    if horovod_is_built():
        return "horovod", ""
    name = "ddp" if size > 1 else "single"
    return name, f"Horovod is not built here, training with {name}; `hvdtrain build-horovod` builds it"


def build_fits_torch(error: ImportError) -> InputError:
    """What to tell when an installed Horovod cannot be loaded."""
    reason = str(error).split(os.linesep)[0]
    return InputError(
        f"backend: the installed Horovod does not load: {reason}",
        do="it was built for another PyTorch or MPI: run `hvdtrain build-horovod --force`",
    )

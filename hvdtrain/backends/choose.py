"""Which engine a job gets, decided without importing any."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from hvdtrain.errors import InputError

BUILD_ADVICE = "build it with `hvdtrain build-horovod`, or choose --set backend=ddp"


def horovod_is_built() -> bool:
    """Whether a Horovod with its PyTorch library is installed in this environment.

    Looks at files only: importing it would load torch and MPI.
    """
    spec = find_spec("horovod")
    folders = spec.submodule_search_locations if spec else None
    return any(any(Path(folder, "torch").glob("mpi_lib_v2*.so")) for folder in folders or [])


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

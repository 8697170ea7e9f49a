"""The commands of a build: a pure function from facts and folders to argv lists and environments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.errors import InputError
from hvdtrain.process import Command
from hvdtrain.tools.build_horovod.facts import HOROVOD_VERSION, SDIST_SHA256, Facts
from hvdtrain.tools.build_horovod.mpi_facts import OPEN_MPI
from hvdtrain.tools.build_horovod.room import has_blank
from hvdtrain.tools.build_horovod.toolchain import BuildTools

PROOF_MODULE = "hvdtrain.backends.horovod"
REQUIREMENT = f"horovod=={HOROVOD_VERSION} --hash=sha256:{SDIST_SHA256}\n"
# settings of the caller that would make another wheel than the facts say
_BUILD_UNSET = ("HOROVOD_", "CMAKE_", "MPI_", "CUDACXX", "MAKEFLAGS")
# an outer job's variables: the proof's own mpirun must not take itself for a part of that job
_PROOF_UNSET = (
    "HOROVOD_",
    "PMI_",
    "PMIX_",
    "PRTE_",
    "OMPI_COMM_",
    "OMPI_UNIVERSE_",
    "SLURM_",
    "PBS_",
    "LSB_",
)


@dataclass(frozen=True)
class Folders:
    """Where a build works; everything is under one scratch folder without blanks in its path."""

    scratch: Path

    @property
    def source(self) -> Path:
        """The unpacked and edited sources."""
        return self.scratch / f"horovod-{HOROVOD_VERSION}"

    @property
    def wheels(self) -> Path:
        """Where pip leaves the wheel."""
        return self.scratch / "wheel"

    @property
    def site(self) -> Path:
        """Where the wheel is unpacked for its proof."""
        return self.scratch / "site"

    @property
    def sdist(self) -> Path:
        """Where pip leaves the source distribution."""
        return self.scratch / "sdist"

    @property
    def requirement(self) -> Path:
        """The requirement file that tells pip the source distribution's hash."""
        return self.scratch / "requirement.txt"

    @property
    def temporary(self) -> Path:
        """TMPDIR of the build."""
        return self.scratch / "tmp"

    @property
    def mpi(self) -> Path:
        """An alias of the MPI installation, for one whose own path has a blank."""
        return self.scratch / "mpi"

    @property
    def nccl(self) -> Path:
        """NCCL's headers and library as Horovod's cmake files look for them."""
        return self.scratch / "nccl"


def fetch_command(facts: Facts, folders: Folders) -> Command:
    """Fetches the source distribution with pip, which checks the hash before it runs anything of it."""
    words = ("download", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--require-hashes")
    places = ("--dest", str(folders.sdist), "--requirement", str(folders.requirement))
    return _pip(facts, *words, *places)


def build_command(
    facts: Facts, tools: BuildTools, folders: Folders, jobs: int, environ: Mapping[str, str]
) -> Command:
    """Compiles the edited sources into a wheel."""
    words = ("wheel", "--verbose", "--no-deps", "--no-build-isolation", "--no-index", "--no-cache-dir")
    command = _pip(facts, *words, "--wheel-dir", str(folders.wheels), str(folders.source))
    return Command(
        command.argv, _build_env(facts, tools, folders, jobs, environ), _matching(environ, _BUILD_UNSET)
    )


def unpack_command(facts: Facts, wheel: Path, folders: Folders) -> Command:
    """Unpacks a wheel beside the environment, for its proof."""
    return _pip(facts, "install", "--no-deps", "--no-index", "--target", str(folders.site), str(wheel))


def install_command(facts: Facts, wheel: Path) -> Command:
    """Installs a wheel into the environment in place of any other Horovod there."""
    return _pip(facts, "install", "--no-deps", "--no-index", "--force-reinstall", str(wheel))


def proof_command(facts: Facts, environ: Mapping[str, str], site: Path | None, *, root: bool) -> Command:
    """Two ranks that add up their numbers.

    Args:
        facts: Python and MPI to run it with.
        environ: The caller's environment.
        site: Folder with an unpacked wheel; None for the Horovod of the environment.
        root: Whether the user is root, whom Open MPI refuses unless told.
    """
    argv = [str(facts.mpi.mpirun), "-np", "2"]
    env = {}
    if facts.mpi.vendor == OPEN_MPI:
        # two ranks on whatever there is, one core included
        argv += ["--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
        env = {"OMPI_MCA_mpi_yield_when_idle": "1"}
        if root:
            env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if site is not None:
        # an unpacked wheel is not where its relative library paths lead from
        libraries = [*facts.mpi.library_dirs, *_split(environ.get("LD_LIBRARY_PATH"))]
        env["PYTHONPATH"] = _join([site, *_split(environ.get("PYTHONPATH"))])
        env["LD_LIBRARY_PATH"] = _join(libraries)
    argv += [str(facts.python.executable), "-m", PROOF_MODULE]
    return Command(tuple(argv), env, _matching(environ, _PROOF_UNSET))


def links(facts: Facts, folders: Folders) -> dict[Path, Path]:
    """The links (name -> target) that a build needs in its scratch folder.

    Open MPI's compiler wrappers print paths without quoting blanks, and cmake splits them there. So an
    installation whose path has a blank gets an alias, and wrappers that take ``OPAL_PREFIX`` (the wheel's own
    mpicxx sets that to the real path whatever it was). NCCL's wheel has no ``libnccl.so`` to link against.

    Raises:
        InputError: MPI's path has a blank and it is no Open MPI.
    """
    made: dict[Path, Path] = {}
    if has_blank(facts.mpi.prefix):
        wrapper = facts.mpi.prefix / "bin/opal_wrapper"
        if not wrapper.exists():
            raise InputError(
                f"{facts.mpi.vendor}'s path has a blank: {facts.mpi.prefix}", do="move it to a path without"
            )
        made[folders.mpi / "prefix"] = facts.mpi.prefix
        made |= {folders.mpi / "bin" / name: wrapper for name in ("mpicxx", "mpic++", "mpicc")}
        # cmake looks for wrappers beside the mpiexec that it finds first
        made[folders.mpi / "bin/mpiexec"] = facts.mpi.prefix / "bin/mpiexec"
    if facts.gpu.nccl is not None:
        made[folders.nccl / "include"] = facts.gpu.nccl.include
        made |= {
            folders.nccl / "lib" / name: facts.gpu.nccl.library for name in ("libnccl.so", "libnccl.so.2")
        }
    return made


def _build_env(
    facts: Facts, tools: BuildTools, folders: Folders, jobs: int, environ: Mapping[str, str]
) -> dict[str, str]:
    blank = has_blank(facts.mpi.prefix)
    mpi_home = folders.mpi if blank else facts.mpi.bin_dir.parent
    cuda = [facts.gpu.toolkit.home / "bin"] if facts.gpu.toolkit is not None else []
    path = [mpi_home / "bin", *cuda, facts.python.bin_dir, *_split(environ.get("PATH", os.defpath))]
    c_compiler = environ.get("CC") or facts.compiler.c_compiler()
    env = {
        "PATH": _join(path),
        "TMPDIR": str(folders.temporary),
        "MPI_HOME": str(mpi_home),
        "CXX": " ".join(facts.compiler.argv),
        # setup.py says -j8 when this is not set
        "MAKEFLAGS": f"-j{jobs}",
        # Horovod's and Gloo's cmake files name versions that cmake 4 no longer takes by itself
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        "HOROVOD_CMAKE": str(tools.cmake),
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HVDTRAIN_RPATH": ";".join(facts.rpath),
    }
    if c_compiler:
        env["CC"] = c_compiler
    if blank:
        env["OPAL_PREFIX"] = str(folders.mpi / "prefix")
    if facts.instructions:
        env["HOROVOD_BUILD_ARCH_FLAGS"] = facts.instructions
    return env | _gpu_env(facts, folders)


def _gpu_env(facts: Facts, folders: Folders) -> dict[str, str]:
    if facts.gpu.kind == "none":
        return {"HOROVOD_WITHOUT_NVTX": "1"}
    assert facts.gpu.toolkit is not None
    env = {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        # torch's cpp_extension and Horovod's cmake files ask for the toolkit by different names
        "CUDA_HOME": str(facts.gpu.toolkit.home),
        "HOROVOD_CUDA_HOME": str(facts.gpu.toolkit.home),
        "CUDAToolkit_ROOT": str(facts.gpu.toolkit.home),
        "HOROVOD_NCCL_HOME": str(folders.nccl),
        "HOROVOD_NCCL_LINK": "SHARED",
    }
    if facts.gpu.capabilities:
        env["HOROVOD_BUILD_CUDA_CC_LIST"] = facts.gpu.capabilities
    return env


def _pip(facts: Facts, verb: str, *words: str) -> Command:
    return Command((str(facts.python.executable), "-m", "pip", verb, "--disable-pip-version-check", *words))


def _matching(environ: Mapping[str, str], starts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(name for name in environ if name.startswith(starts)))


def _split(paths: str | None) -> list[Path]:
    return [Path(word) for word in (paths or "").split(os.pathsep) if word]


def _join(paths: list[Path]) -> str:
    return os.pathsep.join(map(str, paths))

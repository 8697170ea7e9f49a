"""Decides whether to build for NCCL, and finds the CUDA toolkit and NCCL for it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from hvdtrain.errors import InputError
from hvdtrain.tools.build_horovod.probe import probe
from hvdtrain.tools.build_horovod.torch_facts import TorchFacts

Gpu = Literal["none", "nccl"]
_PROBE_S = 60.0
_MEND_NVCC = "set CUDA_HOME to a toolkit whose bin/nvcc runs"
# where a toolkit or NCCL that came with the system stands, after the places that variables name
_TOOLKITS = ("/usr/local/cuda",)
_SYSTEM_NCCL = (Path("/usr"), Path("/usr/local"))
_LIBRARY_DIRS = ("lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu")


@dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit with nvcc, headers and runtime; ``version`` is nvcc's, for example ``13.0.88``."""

    home: Path
    version: str


@dataclass(frozen=True)
class Nccl:
    """NCCL's headers and shared library; ``version`` is from its header, for example ``2.28.9``."""

    include: Path
    library: Path
    version: str


@dataclass(frozen=True)
class GpuChoice:
    """What to build for and why.

    Attributes:
        kind: ``nccl``, or ``none`` for a CPU build.
        why: The reason in one clause.
        toolkit: The CUDA toolkit, None in a CPU build.
        nccl: NCCL, None in a CPU build.
        capabilities: GPU architectures to compile for ("80,90"), empty for all that nvcc knows.
    """

    kind: Gpu
    why: str
    toolkit: Toolkit | None = None
    nccl: Nccl | None = None
    capabilities: str = ""


def choose_gpu(wanted: str, torch: TorchFacts, environ: Mapping[str, str]) -> GpuChoice:
    """Settles ``--gpu auto``, ``none`` or ``nccl``.

    Raises:
        InputError: ``nccl`` is asked for, and something that it needs is not there.
    """
    if wanted == "none":
        return GpuChoice("none", "asked for")
    try:
        toolkit, nccl = _find_both(torch, environ)
    except InputError as error:
        if wanted == "nccl":
            raise
        return GpuChoice("none", error.what)
    capabilities = environ.get("HOROVOD_BUILD_CUDA_CC_LIST", "")
    if not re.fullmatch(r"(\d+(,\d+)*)?", capabilities):
        raise InputError(
            f"HOROVOD_BUILD_CUDA_CC_LIST={capabilities} is no list of compute capabilities",
            legal="numbers with commas between them, such as 80,90",
        )
    why = f"torch for CUDA {torch.cuda}, toolkit {toolkit.version}, NCCL {nccl.version}"
    return GpuChoice("nccl", why, toolkit, nccl, capabilities)


def _find_both(torch: TorchFacts, environ: Mapping[str, str]) -> tuple[Toolkit, Nccl]:
    if torch.cuda is None:
        raise InputError(
            f"torch {torch.version} is a CPU build", where="--gpu nccl", do="install a CUDA build of torch"
        )
    toolkit = _first_toolkit(_toolkit_homes(environ))
    if toolkit is None:
        raise InputError(
            "no CUDA toolkit (nvcc, cuda_runtime.h and libcudart together) by CUDA_HOME, nvcc on PATH or in "
            f"{_TOOLKITS[0]}",
            where="--gpu nccl",
            do=f"install the toolkit of CUDA {torch.cuda}, or set CUDA_HOME",
        )
    if toolkit.version.split(".")[0] != torch.cuda.split(".")[0]:
        raise InputError(
            f"torch {torch.version} is for CUDA {torch.cuda}, but {toolkit.home} is CUDA {toolkit.version}",
            where="--gpu nccl",
            do="set CUDA_HOME to a toolkit with the same first number",
        )
    nccl = next(_find_nccl(environ, toolkit), None)
    if nccl is None:
        raise InputError(
            "no NCCL (nccl.h and libnccl.so) by NCCL_HOME, in this environment's packages or in /usr",
            where="--gpu nccl",
            do=f"pip install nvidia-nccl-cu{torch.cuda.split('.')[0]}, or set NCCL_HOME",
        )
    return toolkit, nccl


def _toolkit_homes(environ: Mapping[str, str]) -> Iterable[Path]:
    for name in ("HOROVOD_CUDA_HOME", "CUDA_HOME", "CUDA_PATH"):
        if environ.get(name):
            yield Path(environ[name])
    if nvcc := shutil.which("nvcc", path=environ.get("PATH")):
        yield from _home_by_nvcc(Path(nvcc))
    yield from map(Path, _TOOLKITS)


def _home_by_nvcc(nvcc: Path) -> Iterable[Path]:
    """The toolkit that an nvcc belongs to; nvcc itself may be a link or a script that starts the real one."""
    told = probe([nvcc, "--dryrun", "none.cu"], timeout_s=_PROBE_S, do=_MEND_NVCC)
    if match := re.search(r"^#\$ TOP=(.*)$", told.stderr + told.stdout, re.MULTILINE):
        yield Path(match[1].strip())
    yield nvcc.resolve().parent.parent


def _first_toolkit(homes: Iterable[Path]) -> Toolkit | None:
    for home in homes:
        nvcc = home / "bin/nvcc"
        runtime = any((home / place / "libcudart.so").exists() for place in ("lib64", "lib"))
        if not (nvcc.exists() and runtime and (home / "include/cuda_runtime.h").exists()):
            continue
        told = probe([nvcc, "--version"], timeout_s=_PROBE_S, do=_MEND_NVCC)
        if match := re.search(r"\bV(\d[\d.]*)", told.stdout):
            return Toolkit(home.resolve(), match[1])
    return None


def _find_nccl(environ: Mapping[str, str], toolkit: Toolkit) -> Iterator[Nccl]:
    """NCCL by variable, then pip's (the one that torch loads), then the toolkit's and the system's."""
    named = [Path(environ[name]) for name in ("HOROVOD_NCCL_HOME", "NCCL_HOME") if environ.get(name)]
    packaged: list[Path] = []
    nvidia = find_spec("nvidia")
    if nvidia is not None:
        packaged = [Path(place) / "nccl" for place in nvidia.submodule_search_locations or ()]
    for home in (*named, *packaged, toolkit.home, *_SYSTEM_NCCL):
        header = home / "include/nccl.h"
        libraries = [
            home / place / name for place in _LIBRARY_DIRS for name in ("libnccl.so.2", "libnccl.so")
        ]
        library = next((path for path in libraries if path.exists()), None)
        if header.exists() and library is not None:
            yield Nccl(header.parent, library, _nccl_version(header))


def _nccl_version(header: Path) -> str:
    text = header.read_text(encoding="utf-8", errors="replace")
    numbers = [re.search(rf"#define NCCL_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(match[1] for match in numbers if match)

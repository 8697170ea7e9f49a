"""Everything that a wheel depends on, and the key that stands for it."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.tools.build_horovod.cuda import GpuChoice, choose_gpu
from hvdtrain.tools.build_horovod.edits import Edit, edits_for
from hvdtrain.tools.build_horovod.mpi_facts import MpiFacts, find_mpi
from hvdtrain.tools.build_horovod.toolchain import CompilerFacts, find_compiler, instruction_flags
from hvdtrain.tools.build_horovod.torch_facts import TorchFacts, find_torch

HOROVOD_VERSION = "0.28.1"
SDIST_NAME = f"horovod-{HOROVOD_VERSION}.tar.gz"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
# the caller's compiler settings that cmake takes over into the wheel
_FLAG_VARIABLES = ("CC", "CFLAGS", "CPPFLAGS", "CXXFLAGS", "LDFLAGS", "CUDAFLAGS")


@dataclass(frozen=True)
class PythonFacts:
    """The Python that the wheel is for.

    Attributes:
        executable: The interpreter as it was called, so that a virtual environment stays one.
        prefix: The environment's folder.
        site: Where the environment's compiled packages go.
        abi: The tag of its extension modules, for example ``cpython-311-x86_64-linux-gnu``.
        platform: For example ``linux-x86_64``.
    """

    executable: Path
    prefix: Path
    site: Path
    abi: str
    platform: str

    @property
    def bin_dir(self) -> Path:
        """The environment's folder of programs."""
        return self.prefix / "bin"


@dataclass(frozen=True)
class Facts:
    """What a wheel depends on besides Horovod's own sources."""

    python: PythonFacts
    torch: TorchFacts
    mpi: MpiFacts
    compiler: CompilerFacts
    gpu: GpuChoice
    instructions: str
    flags: Mapping[str, str]

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits that these facts call for."""
        return edits_for(self.torch.cxx_standard, with_cuda=self.gpu.kind == "nccl")

    @property
    def wheel_name(self) -> str:
        """The file name that the wheel will have."""
        tag = f"cp{self.python.abi.split('-')[1]}"
        platform = self.python.platform.replace("-", "_").replace(".", "_")
        return f"horovod-{HOROVOD_VERSION}-{tag}-{tag}-{platform}.whl"

    @property
    def rpath(self) -> tuple[str, ...]:
        """Where the library looks for MPI, torch and NCCL; relative for what is in the same environment."""
        places = [*self.mpi.library_dirs, self.torch.root / "lib"]
        if self.gpu.nccl is not None:
            places.append(self.gpu.nccl.library.parent)
        # resolved: MPI's wrappers print real paths, while Python keeps the links that it was called by
        prefix = self.python.prefix.resolve()
        library = self.python.site.resolve() / "horovod" / "torch"
        return tuple(
            f"$ORIGIN/{os.path.relpath(place, library)}" if place.is_relative_to(prefix) else str(place)
            for place in dict.fromkeys(place.resolve() for place in places)
        )

    def document(self) -> dict[str, object]:
        """What the key is made of, as a JSON document that a person can read."""
        gpu = self.gpu
        cuda = {
            "toolkit": str(gpu.toolkit.home) if gpu.toolkit else "",
            "toolkit_version": gpu.toolkit.version if gpu.toolkit else "",
            "nccl_version": gpu.nccl.version if gpu.nccl else "",
            "capabilities": gpu.capabilities or "all",
        }
        torch, mpi, compiler = self.torch, self.mpi, self.compiler
        # a wheel finds an MPI of its own environment by a relative path, so it serves every such environment
        own_mpi = mpi.prefix == self.python.prefix.resolve()
        return {
            "horovod": {"version": HOROVOD_VERSION, "sdist_sha256": SDIST_SHA256},
            "edits": {edit.name: _digest([edit.path, edit.old, edit.new]) for edit in self.edits},
            "torch": {
                "version": torch.version,
                "git": torch.git,
                "cuda": torch.cuda,
                "cxx_standard": torch.cxx_standard,
                "cxx11_abi": torch.cxx11_abi,
            },
            "python": {"abi": self.python.abi, "platform": self.python.platform},
            "mpi": {
                "vendor": mpi.vendor,
                "version": mpi.version,
                "prefix": "the environment's" if own_mpi else str(mpi.prefix),
                "library_sha256": mpi.library_sha256,
            },
            "compiler": {"argv": compiler.argv, "kind": compiler.kind, "version": compiler.version},
            "gpu": {"kind": gpu.kind, **(cuda if gpu.kind == "nccl" else {})},
            "instructions": self.instructions,
            "flags": dict(self.flags),
            "rpath": self.rpath,
        }

    @property
    def key(self) -> str:
        """The name of the wheel's folder in the cache; other facts give another key."""
        return _digest(self.document())[:20]


def gather_facts(environ: Mapping[str, str], gpu: str) -> Facts:
    """Looks at this environment without importing torch.

    Args:
        environ: The process's environment.
        gpu: ``auto``, ``none`` or ``nccl``.

    Raises:
        InputError: Something that a build needs is missing or unfit; the first one found.
    """
    python = PythonFacts(
        executable=Path(sys.executable),
        prefix=Path(sys.prefix),
        site=Path(sysconfig.get_path("platlib")),
        abi=str(sysconfig.get_config_var("SOABI")),
        platform=sysconfig.get_platform(),
    )
    torch = find_torch()
    return Facts(
        python=python,
        torch=torch,
        mpi=find_mpi(environ.get("PATH", os.defpath), python.bin_dir),
        compiler=find_compiler(environ, torch),
        gpu=choose_gpu(gpu, torch, environ),
        instructions=environ.get("HOROVOD_BUILD_ARCH_FLAGS") or _cpu_instructions(),
        flags={name: environ[name] for name in _FLAG_VARIABLES if environ.get(name)},
    )


def _cpu_instructions() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    return instruction_flags(cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else "")


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

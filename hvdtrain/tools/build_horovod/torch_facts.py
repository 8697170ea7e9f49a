"""What a Horovod build must know of the installed torch, read from its files: torch is not imported."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from hvdtrain.errors import InputError

# the two headers with which every extension begins; each refuses older standards with an #error
_HEADERS = ("include/ATen/ATen.h", "include/torch/csrc/api/include/torch/all.h")
_CXX_DEMAND = re.compile(r"^\s*#\s*error\s+C\+\+(\d+) or later", re.MULTILINE)
_ABI_FLAG = re.compile(r"_GLIBCXX_USE_CXX11_ABI=([01])")


@dataclass(frozen=True)
class TorchFacts:
    """The installed torch, as far as a build depends on it.

    Attributes:
        root: The package's folder.
        version: Full version with its local part, for example ``2.13.0+cpu``.
        git: The commit it was built from; tells two builds of one version apart.
        cuda: CUDA version it was built for, None for a CPU build.
        cxx_standard: The C++ standard that its headers ask for, for example 17.
        cxx11_abi: Whether it was built with the C++11 ABI of libstdc++.
    """

    root: Path
    version: str
    git: str
    cuda: str | None
    cxx_standard: int
    cxx11_abi: bool


def find_torch() -> TorchFacts:
    """Reads the facts of the torch that ``import torch`` would load.

    Raises:
        InputError: There is none, or its files do not say what a build needs.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise InputError("torch is not installed in this environment", do="pip install 'torch>=2.4'")
    return read_torch(Path(spec.origin).parent)


def read_torch(root: Path) -> TorchFacts:
    """Reads the facts from a torch package's folder.

    Raises:
        InputError: A file is missing or does not say what a build needs.
    """
    version = _version_constants(root / "version.py")
    if version.get("hip"):
        raise InputError(
            f"torch {version['__version__']} is a ROCm build, which build-horovod does not support",
            legal="torch for the CPU or for CUDA",
        )
    return TorchFacts(
        root=root,
        version=str(version["__version__"]),
        git=str(version.get("git_version", "")),
        cuda=version.get("cuda"),
        cxx_standard=_cxx_standard(root),
        cxx11_abi=_cxx11_abi(root),
    )


def _version_constants(path: Path) -> dict[str, str | None]:
    """The plain ``name = "value"`` assignments of torch/version.py."""
    values: dict[str, str | None] = {}
    for node in ast.parse(_read(path)).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant) and (value.value is None or isinstance(value.value, str)):
            values.update({target.id: value.value for target in targets if isinstance(target, ast.Name)})
    if not values.get("__version__"):
        raise InputError("holds no __version__", where=str(path), do="install torch again")
    return values


def _cxx_standard(root: Path) -> int:
    demands = [int(found) for name in _HEADERS for found in _CXX_DEMAND.findall(_read(root / name))]
    if not demands:
        names = " and ".join(_HEADERS)
        raise InputError(
            f"torch's headers do not name the C++ standard that they need (looked in {names})",
            where=str(root),
            legal="torch 2.4 or later",
        )
    return max(demands)


def _cxx11_abi(root: Path) -> bool:
    """From torch's own CMake file; releases that no longer name the ABI have the C++11 one only."""
    flags = _ABI_FLAG.findall(_read(root / "share/cmake/Torch/TorchConfig.cmake"))
    return "0" not in flags


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(
            f"cannot read a file of torch: {error.strerror}", where=str(path), do="install torch again"
        ) from error

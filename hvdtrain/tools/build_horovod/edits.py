"""The changes that Horovod 0.28.1's sources need: named, with a reason, each fitting exactly once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hvdtrain.errors import BuildError


@dataclass(frozen=True)
class Edit:
    """One replacement in one file of the source distribution.

    Attributes:
        name: What the plan and the errors call it.
        reason: Why it is needed.
        path: The file, relative to the unpacked source distribution.
        old: Text that stands in the file exactly once.
        new: What takes its place.
    """

    name: str
    reason: str
    path: str
    old: str
    new: str


def edits_for(cxx_standard: int, *, with_cuda: bool) -> tuple[Edit, ...]:
    """The edits for a C++ standard, for a build with CUDA or one that must not see a toolkit."""
    edits = (*_standard_edits(cxx_standard), _RPATH, *_DISTUTILS)
    return edits if with_cuda else (*edits, *_NO_CUDA)


def apply_edits(edits: tuple[Edit, ...], source: Path) -> None:
    """Applies edits to unpacked sources.

    Raises:
        BuildError: An edit's file is missing, or its old text does not stand there exactly once.
    """
    for edit in edits:
        path = source / edit.path
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise BuildError(f"edit {edit.name}: cannot read {edit.path}: {error.strerror}") from error
        count = text.count(edit.old)
        if count != 1:
            raise BuildError(
                f"edit {edit.name}: its text stands {count} times in {edit.path}, not once; "
                "these are not the sources that the edit was written for"
            )
        path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")


def _standard_edits(standard: int) -> tuple[Edit, ...]:
    reason = f"torch's headers need C++{standard}, Horovod asks for C++14"
    old, new = "set(CMAKE_CXX_STANDARD 14)", f"set(CMAKE_CXX_STANDARD {standard})"
    return (
        Edit(f"c++{standard}", reason, "CMakeLists.txt", old, new),
        Edit(f"c++{standard}-torch", reason, "horovod/torch/CMakeLists.txt", old, new),
    )


_RPATH = Edit(
    "rpath",
    "the folder of the build is deleted, so the library must not look there for MPI and NCCL",
    "CMakeLists.txt",
    "set(CMAKE_CXX_EXTENSIONS OFF)\n",
    "set(CMAKE_CXX_EXTENSIONS OFF)\n"
    "set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)\n"
    'set(CMAKE_INSTALL_RPATH "$ENV{HVDTRAIN_RPATH}")\n',
)

_DISTUTILS = (
    Edit(
        "no-distutils-cmake",
        "distutils is gone from Python 3.12",
        "horovod/torch/CMakeLists.txt",
        "from distutils.sysconfig import get_python_inc; print(get_python_inc())",
        "from sysconfig import get_path; print(get_path('include'))",
    ),
    Edit(
        "no-distutils-runner",
        "distutils is gone from Python 3.12",
        "horovod/runner/js_run.py",
        "from distutils.spawn import find_executable\n",
        "from shutil import which as find_executable\n",
    ),
)

_NO_CUDA = (
    Edit(
        "no-cuda-torch",
        "a CPU build must not compile for CUDA because torch could and a toolkit is about",
        "cmake/Modules/FindPytorch.cmake",
        "print(True if ((torch.version.cuda is not None) and (CUDA_HOME is not None)) else False)",
        "print(False)",
    ),
    Edit(
        "no-cuda-language",
        "a CPU build must not fail over an nvcc that refuses this compiler",
        "CMakeLists.txt",
        "if(CMAKE_CUDA_COMPILER)\n    if((CMAKE_CXX_COMPILER_ID MATCHES GNU)",
        "if(OFF)\n    if((CMAKE_CXX_COMPILER_ID MATCHES GNU)",
    ),
)

"""Finds the compiler, cmake, make and the packages that a build needs, and says what is missing."""

from __future__ import annotations

import re
import shlex
import shutil
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from hvdtrain.errors import InputError
from hvdtrain.tools.build_horovod.probe import probe
from hvdtrain.tools.build_horovod.torch_facts import TorchFacts

_PROBE_S = 60.0
_INSTALL_COMPILER = "apt install g++, or dnf install gcc-c++, or load a compiler module, or set CXX"
# C++ standard -> oldest compiler that torch's headers of that standard build with.
# 17: torch's own check in c10/util/C++17.h; 20: the first with the library parts that they use.
_OLDEST = {17: {"gcc": 9, "clang": 9}, 20: {"gcc": 11, "clang": 14}}
_OLDEST_CMAKE = (3, 18)
# distribution -> what imports it: Horovod's setup.py when it builds, Horovod itself when it runs
_PACKAGES = ("cffi", "cloudpickle", "packaging", "psutil", "PyYAML", "setuptools", "wheel")


@dataclass(frozen=True)
class CompilerFacts:
    """A C++ compiler: its argv, ``gcc`` or ``clang``, and its version."""

    argv: tuple[str, ...]
    kind: str
    version: str

    @property
    def major(self) -> int:
        """The first number of the version."""
        return int(self.version.split(".")[0])

    def c_compiler(self) -> str | None:
        """The C compiler beside it, None if it cannot be told from the name."""
        program = Path(self.argv[-1])
        name = program.name.replace("clang++", "clang").replace("g++", "gcc").replace("c++", "cc")
        beside = program.with_name(name)
        return str(beside) if name != program.name and beside.exists() else None


@dataclass(frozen=True)
class BuildTools:
    """Programs that only a build needs; their versions do not show in the wheel."""

    cmake: Path
    make: Path


def find_compiler(environ: Mapping[str, str], torch: TorchFacts) -> CompilerFacts:
    """Finds ``$CXX`` or the first C++ compiler on PATH, and checks that it is new enough for torch.

    Raises:
        InputError: There is none, it does not run, or it is too old.
    """
    named = shlex.split(environ.get("CXX", ""))
    names = named[-1:] or ["c++", "g++", "clang++"]
    found = next((path for name in names if (path := shutil.which(name, path=environ.get("PATH")))), None)
    if found is None:
        none = "no C++ compiler (c++, g++, clang++) on PATH"
        what = f"CXX={environ['CXX']} does not exist" if named else none
        raise InputError(what, do=_INSTALL_COMPILER)
    compiler = _identify((*named[:-1], found))
    oldest = _OLDEST[max(standard for standard in _OLDEST if standard <= max(torch.cxx_standard, 17))]
    if compiler.major < oldest[compiler.kind]:
        raise InputError(
            f"{found} is {compiler.kind} {compiler.version}, too old for torch {torch.version}, "
            f"whose headers are C++{torch.cxx_standard}",
            legal=f"gcc {oldest['gcc']} or clang {oldest['clang']}, or later",
            do="set CXX to a newer compiler",
        )
    return compiler


def _identify(argv: tuple[str, ...]) -> CompilerFacts:
    question = (*argv, "-dM", "-E", "-x", "c++", "/dev/null")
    told = probe(question, timeout_s=_PROBE_S, do=_INSTALL_COMPILER)
    macros = dict(re.findall(r"^#define (__\w+__) (\d+)$", told.stdout, re.MULTILINE))
    for kind, names in (
        ("clang", ("__clang_major__", "__clang_minor__", "__clang_patchlevel__")),
        ("gcc", ("__GNUC__", "__GNUC_MINOR__", "__GNUC_PATCHLEVEL__")),
    ):
        if told.returncode == 0 and all(name in macros for name in names):
            return CompilerFacts(argv, kind, ".".join(macros[name] for name in names))
    raise InputError(
        f"{shlex.join(argv)} is no C++ compiler that works: {_last_line(told.stderr)}",
        legal="gcc or clang",
        do=_INSTALL_COMPILER,
    )


def find_build_tools(search_path: str, env_bin: Path) -> BuildTools:
    """Finds cmake (the environment's wheel first) and make.

    Raises:
        InputError: One is missing or too old.
    """
    cmakes = [shutil.which("cmake", path=where) for where in (str(env_bin), search_path)]
    versions = {Path(cmake): _cmake_version(cmake) for cmake in cmakes if cmake}
    usable = [cmake for cmake, version in versions.items() if version >= _OLDEST_CMAKE]
    if not usable:
        seen = ", ".join(f"{cmake} is {'.'.join(map(str, version))}" for cmake, version in versions.items())
        raise InputError(
            f"no cmake that is new enough: {seen}" if seen else "no cmake in this environment or on PATH",
            legal="{}.{} or later".format(*_OLDEST_CMAKE),
            do="pip install cmake",
        )
    make = shutil.which("make", path=search_path)
    if make is None:
        raise InputError("no make on PATH", do="apt install make, or dnf install make")
    return BuildTools(usable[0], Path(make))


def _cmake_version(program: str) -> tuple[int, ...]:
    told = probe([program, "--version"], timeout_s=_PROBE_S, do="pip install cmake")
    match = re.search(r"cmake version (\d+)\.(\d+)", told.stdout)
    return (int(match[1]), int(match[2])) if match else (0,)


def check_pip() -> None:
    """Checks for pip, which fetches, builds and installs.

    Raises:
        InputError: This environment has none.
    """
    if not _has("pip"):
        raise InputError("this environment has no pip", do="python -m ensurepip, or uv pip install pip")


def check_python(packages: Iterable[str] = _PACKAGES) -> None:
    """Checks for Python's headers and for the packages that Horovod's build and import need.

    Raises:
        InputError: Some are missing; names all of them and the line that brings them.
    """
    missing = [name for name in packages if not _has(name)]
    if missing:
        raise InputError(
            f"packages that the build needs are missing: {', '.join(missing)}",
            do=f"pip install {shlex.join(missing)} (the extra hvdtrain[build] names them all)",
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        raise InputError(
            f"Python's headers are missing: there is no {header}",
            do="apt install python3-dev, or dnf install python3-devel, of this Python's version",
        )


def _has(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def instruction_flags(cpuinfo: str) -> str:
    """The vector instructions to compile with, of those that Horovod has code for.

    Horovod asks ``gcc -march=native``, whichever compiler builds it; the CPU's own list says the same, and
    stands in the wheel's key.

    Args:
        cpuinfo: The text of ``/proc/cpuinfo``.
    """
    match = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    present = set(match[1].split()) if match else set()
    return " ".join(f"-m{name}" for name in ("f16c", "avx", "fma") if name in present)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it printed nothing"])[-1]

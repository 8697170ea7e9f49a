"""What is missing or too old is said before anything is compiled."""

import os
import re
import sys
from pathlib import Path

import pytest

from hvdtrain.errors import InputError
from hvdtrain.tools.build_horovod.toolchain import (
    check_pip,
    check_python,
    find_build_tools,
    find_compiler,
    instruction_flags,
)
from hvdtrain.tools.build_horovod.torch_facts import TorchFacts

PATH = "/usr/bin:/bin"


def torch_with(standard: int) -> TorchFacts:
    return TorchFacts(Path("/torch"), "2.14.1", "", None, standard, True)


def compiler(path: Path, **macros: int) -> Path:
    """A program that answers a request for its macros as a compiler of that version does."""
    lines = "\n".join(f"#define {name} {value}" for name, value in macros.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\n")
    path.chmod(0o755)
    return path


def gcc(path: Path, major: int) -> Path:
    return compiler(path, __GNUC__=major, __GNUC_MINOR__=2, __GNUC_PATCHLEVEL__=1)


def clang(path: Path, major: int) -> Path:
    # clang says that it is gcc 4.2.1, too
    names = {"__clang_major__": major, "__clang_minor__": 0, "__clang_patchlevel__": 6}
    return compiler(path, __GNUC__=4, __GNUC_MINOR__=2, __GNUC_PATCHLEVEL__=1, **names)


def test_the_real_compiler_of_this_machine():
    facts = find_compiler({"PATH": os.environ["PATH"]}, torch_with(17))
    assert facts.kind in ("gcc", "clang")
    assert facts.major >= 9
    assert Path(facts.argv[0]).is_absolute()
    assert Path(facts.c_compiler()).exists()


@pytest.mark.parametrize(
    ("make", "major", "standard", "fits"),
    [
        (gcc, 8, 17, False),
        (gcc, 9, 17, True),
        (gcc, 10, 20, False),
        (gcc, 11, 20, True),
        (clang, 8, 17, False),
        (clang, 9, 17, True),
        (clang, 13, 20, False),
        (clang, 14, 20, True),
    ],
)
def test_the_oldest_compiler_depends_on_torchs_standard(tmp_path, make, major, standard, fits):
    program = make(tmp_path / "c++", major)
    environ = {"PATH": f"{tmp_path}:{PATH}"}
    if fits:
        assert find_compiler(environ, torch_with(standard)).major == major
    else:
        with pytest.raises(
            InputError, match=rf"{re.escape(str(program))} is \w+ {major}\..*too old for torch 2\.14\.1"
        ):
            find_compiler(environ, torch_with(standard))


def test_cxx_comes_before_path_and_keeps_its_launcher(tmp_path):
    named = gcc(tmp_path / "mine/g++-12", 12)
    launcher = tmp_path / "ccache"
    launcher.write_text('#!/bin/sh\nexec "$@"\n')
    launcher.chmod(0o755)
    gcc(tmp_path / "c++", 13)
    facts = find_compiler({"PATH": f"{tmp_path}:{PATH}", "CXX": f"{launcher} {named}"}, torch_with(17))
    assert facts.argv == (str(launcher), str(named))
    assert facts.version == "12.2.1"


@pytest.mark.parametrize(
    ("name", "c_name"), [("g++", "gcc"), ("c++", "cc"), ("clang++-15", "clang-15"), ("g++-12", "gcc-12")]
)
def test_the_c_compiler_is_the_one_beside(tmp_path, name, c_name):
    program = gcc(tmp_path / name, 12)
    facts = find_compiler({"PATH": PATH, "CXX": str(program)}, torch_with(17))
    assert facts.c_compiler() is None
    (tmp_path / c_name).write_text("")
    assert facts.c_compiler() == str(tmp_path / c_name)


def test_no_compiler_names_the_package(tmp_path):
    with pytest.raises(InputError, match=r"no C\+\+ compiler .*apt install g\+\+"):
        find_compiler({"PATH": str(tmp_path)}, torch_with(17))


def test_a_cxx_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match="CXX=/nowhere/g\\+\\+ does not exist"):
        find_compiler({"PATH": PATH, "CXX": "/nowhere/g++"}, torch_with(17))


def test_a_compiler_that_does_not_run_shows_its_last_words(tmp_path):
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\necho 'license expired' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(InputError, match="no C\\+\\+ compiler that works: license expired"):
        find_compiler({"PATH": f"{tmp_path}:{PATH}"}, torch_with(17))


def cmake(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho 'cmake version {version}'\n")
    path.chmod(0o755)
    return path


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "make").write_text("")
    (folder / "make").chmod(0o755)


@pytest.mark.parametrize(
    ("env_version", "path_version", "taken"),
    [
        ("4.4.5", "3.25.1", "env"),
        ("3.10.2", "3.25.1", "path"),
        (None, "3.18.0", "path"),
        ("3.18.0", None, "env"),
    ],
)
def test_the_environments_cmake_comes_first_if_it_is_new_enough(tmp_path, env_version, path_version, taken):
    made = {"env": env_version, "path": path_version}
    made = {name: cmake(tmp_path / name / "cmake", version) for name, version in made.items() if version}
    make(tmp_path / "path")
    assert find_build_tools(str(tmp_path / "path"), tmp_path / "env").cmake == made[taken]


def test_no_cmake_names_the_wheel(tmp_path):
    make(tmp_path)
    with pytest.raises(InputError, match=r"no cmake in this environment or on PATH.*pip install cmake"):
        find_build_tools(str(tmp_path), tmp_path / "env")


def test_an_old_cmake_is_named_with_its_version(tmp_path):
    program = cmake(tmp_path / "cmake", "3.10.2")
    make(tmp_path)
    with pytest.raises(
        InputError, match=rf"{re.escape(str(program))} is 3\.10; legal: 3\.18 or later; pip install cmake"
    ):
        find_build_tools(str(tmp_path), tmp_path / "env")


def test_no_make(tmp_path):
    cmake(tmp_path / "cmake", "3.25.1")
    with pytest.raises(InputError, match="no make on PATH; apt install make"):
        find_build_tools(str(tmp_path), tmp_path / "env")


def test_every_missing_package_is_named_at_once():
    with pytest.raises(InputError, match="missing: no-such-a, no-such-b; pip install no-such-a no-such-b"):
        check_python(["no-such-a", "packaging", "no-such-b"])


def test_an_environment_without_pip_is_told_how_to_get_it(monkeypatch):
    check_pip()
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(InputError, match="no pip; python -m ensurepip"):
        check_pip()


def test_present_packages_and_headers_pass():
    check_python(["packaging"])


@pytest.mark.parametrize(
    ("cpuinfo", "flags"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx avx2 fma f16c\n", "-mf16c -mavx -mfma"),
        ("flags\t\t: fpu avx2 avx512f\n", ""),
        ("flags\t\t: fpu avx\n", "-mavx"),
        ("Features\t: fp asimd\n", ""),
        ("", ""),
    ],
)
def test_instructions_are_those_that_the_cpu_and_horovod_have(cpuinfo, flags):
    assert instruction_flags(cpuinfo) == flags

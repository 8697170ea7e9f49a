"""What `make` says of a machine that lacks a part, before anything is made or downloaded."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "bootstrap.py"


def bootstrap(tmp_path, prelude="pass", **variables):
    """Runs the script in an empty folder after ``prelude``."""
    code = f"import runpy, sys; {prelude}; sys.argv = ['bootstrap', '.venv']; "
    code += f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    env = {**os.environ, **variables}
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert list(tmp_path.iterdir()) == []
    return ended.returncode, ended.stderr


def test_no_venv_module(tmp_path):
    code, told = bootstrap(tmp_path, "sys.modules['ensurepip'] = None")
    assert code == 2
    package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    assert told == f"make: missing: Python's venv module: apt install {package} (Debian, Ubuntu)\n"


def test_no_compiler(tmp_path):
    python = Path(sys.executable).resolve().parent
    code, told = bootstrap(tmp_path, PATH=str(python), CXX="")
    assert code == 2
    assert "make: missing: a C++ compiler: apt install g++" in told


def test_everything_that_is_missing_is_named_at_once(tmp_path):
    code, told = bootstrap(tmp_path, "sys.modules['venv'] = None", CXX="/no/such/compiler")
    assert code == 2
    assert told.count("make: missing:") == 2


def test_an_old_python(tmp_path):
    code, told = bootstrap(tmp_path, "sys.version_info = (3, 9, 2, 'final', 0)")
    assert code == 2
    assert "Python 3.11 or newer" in told
    assert "make PYTHON=python3.11" in told


@pytest.fixture(scope="module")
def make_environment():
    return runpy.run_path(str(SCRIPT))["make_environment"]


@pytest.mark.parametrize("left", ["no pip", "a pip that does not start", "a link to a python that is gone"])
def test_an_environment_whose_making_was_interrupted_is_made_again(tmp_path, make_environment, left):
    venv = tmp_path / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    if left == "a pip that does not start":
        (module,) = venv.glob("lib/python*/site-packages")
        (module / "pip").mkdir()
        (module / "pip" / "__init__.py").write_text("")
    elif left == "a link to a python that is gone":
        (venv / "bin" / "python").unlink()
        (venv / "bin" / "python").symlink_to(tmp_path / "gone")
    python = make_environment(str(venv))
    assert subprocess.run([python, "-m", "pip", "--version"], check=False).returncode == 0


def test_an_environment_that_works_is_kept(tmp_path, make_environment):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    assert make_environment(str(tmp_path)) == str(python)
    assert python.read_text() == "#!/bin/sh\nexit 0\n"


def test_a_folder_that_is_no_environment_is_not_emptied(tmp_path, make_environment):
    (tmp_path / "precious").write_text("")
    make_environment(str(tmp_path))
    assert (tmp_path / "precious").exists()

"""What `make` says of a machine that lacks a part, before anything is made or downloaded."""

import os
import subprocess
import sys
from pathlib import Path

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

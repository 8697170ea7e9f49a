"""``pip install .`` and the wheel carry what they need."""

import os
import shutil
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What a wheel is made of. A copy is built: in the working tree, what an earlier build left in
# build/lib would take the place of a file that is no longer packaged.
SOURCES = ("hvdtrain", "setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE")


def test_the_wheel_is_complete_and_runs(run_program, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip"]
    wheel = [
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(tmp_path),
        str(source),
    ]
    built = run_program([*pip, *wheel])
    assert built.code == 0, built.err
    (path,) = tmp_path.glob("hvdtrain-*.whl")
    names = set(zipfile.ZipFile(path).namelist())
    package = [
        path for path in (ROOT / "hvdtrain").rglob("*") if path.suffix in (".py", ".yaml", ".j2", ".typed")
    ]
    assert {str(path.relative_to(ROOT)) for path in package} <= names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]
    target = tmp_path / "site"
    assert (
        run_program([*pip, "install", "--quiet", "--no-deps", "--target", str(target), str(path)]).code == 0
    )
    code = (
        "import hvdtrain, sys; from hvdtrain.cli.main import main; print(hvdtrain.__file__); sys.exit(main())"
    )
    env = {"PYTHONPATH": str(target)}
    ended = run_program([sys.executable, "-c", code, "train", "--dry-run", "-np", "2"], env)
    assert ended.code == 0, ended.err
    assert ended.out.startswith(str(target) + os.sep)

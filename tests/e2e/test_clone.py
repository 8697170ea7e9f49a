"""The README's first command in a clone of its own: a path with blanks, an empty HOME.

It installs everything once more, which takes minutes, so it runs where HVDTRAIN_CLONE=require is
set, as CI does.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    os.environ.get("HVDTRAIN_CLONE") != "require",
    reason="installs everything again; HVDTRAIN_CLONE=require runs it",
)


@pytest.fixture
def clone(tmp_path):
    """The files that git knows, as they are now."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    target = tmp_path / "a clone with blanks"
    for name in filter(None, listing.stdout.split("\0")):
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes((ROOT / name).read_bytes())
        place.chmod((ROOT / name).stat().st_mode)
    (tmp_path / "home").mkdir()
    return target


def make(clone, *words, **variables):
    cache = os.environ.get("HVDTRAIN_CACHE") or str(Path.home() / ".cache" / "hvdtrain")
    env = {**os.environ, "HOME": str(clone.parent / "home"), "HVDTRAIN_CACHE": cache, **variables}
    for name in ("VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
        env.pop(name, None)
    return subprocess.run(["make", *words], cwd=clone, env=env, capture_output=True, text=True, timeout=1800)


def test_make_demo_twice(clone):
    first = make(clone, "demo")
    assert first.returncode == 0, first.stdout + first.stderr
    status = json.loads((clone / "runs" / "demo" / "status.json").read_text())
    assert status["result"]["accuracy"] >= 0.97
    assert (status["result"]["backend"], status["result"]["size"]) == ("horovod", 2)
    second = make(clone, "demo")
    assert second.returncode == 0, second.stdout + second.stderr
    assert "installing" not in second.stdout + second.stderr
    assert "compiling" not in second.stdout + second.stderr


def test_a_missing_compiler_is_named_before_anything_is_made(clone):
    ended = make(clone, "demo", CXX="/no/such/compiler")
    assert ended.returncode != 0
    assert "/no/such/compiler: apt install g++" in ended.stderr
    assert not (clone / ".venv").exists()

"""The README's commands for several hosts and for Slurm, run as they stand there, on the lab."""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path

import pytest
import yaml
from PIL import Image

pytestmark = pytest.mark.lab

README = (Path(__file__).parents[2] / "README.md").read_text()
LINES = [line for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
TIMEOUT_S = 180


@pytest.fixture
def workspace(tmp_path):
    """The files that the commands name."""
    example = next(text for text in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL) if "photos" in text)
    (tmp_path / "photos.yaml").write_text(yaml.safe_dump(yaml.safe_load(example) | {"epochs": 1}))
    for part, count in (("train", 20), ("validation", 4)):
        for number, name in enumerate(("cat", "dog")):
            folder = tmp_path / "photos" / part / name
            folder.mkdir(parents=True)
            for index in range(count):
                Image.new("RGB", (80, 70), (250 * number, index, 0)).save(folder / f"{index}.jpg")
    (tmp_path / "hosts").write_text("h1 slots=1\nh2 slots=1\n")
    (tmp_path / "train.py").write_text("print('trained')\n")
    return tmp_path


def test_the_commands_are_there():
    assert [line.split()[1] for line in LINES] == ["run", "run", "run", "submit", "submit", "jobs"]


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("hvdtrain run")])
def test_several_hosts(lab, workspace, line):
    done = lab.exec("h1", shlex.split(line), cwd=workspace, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    if "--dry-run" not in line and "train.py" in line:
        assert done.stdout.count("trained") == 3


@pytest.mark.parametrize("line", [line for line in LINES if not line.startswith("hvdtrain run")])
def test_slurm(slurm, workspace, line):
    env = {
        **slurm.slurm_env,
        "XDG_CONFIG_HOME": str(workspace / "config"),
        "XDG_STATE_HOME": str(workspace / "state"),
    }
    done = slurm.exec("head", shlex.split(line), env=env, cwd=workspace, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    if "--wait" in line:
        assert done.stdout.count("trained") == 4
    elif "submit" in line:
        job = done.stdout.split()[1]
        assert final_state(slurm, env, workspace, job) == "COMPLETED"


def final_state(slurm, env, workspace, job):
    """Waits until Slurm has done with a job."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        told = slurm.exec("head", ["hvdtrain", "jobs", "--json", job], env=env, cwd=workspace, timeout=30)
        (one,) = json.loads(told.stdout)["jobs"]
        if one["state"] not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING"):
            return one["state"]
        time.sleep(0.5)
    return "not in time"

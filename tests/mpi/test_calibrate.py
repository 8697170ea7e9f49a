"""calibrate on real ranks: what it proposes is run as proposed, and the prediction is narrower after it."""

import json
import math
import os
import sys

import pytest

from hvdtrain.backends.choose import horovod_is_built

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(not horovod_is_built(), reason="needs Horovod: make build-horovod"),
]
STEPS = "60"  # of all profiles: a shared machine's noise would ask for hundreds
JOB = """
name: wide
model: 'wide_job:model'
data: {source: 'wide_job:data'}
batch: {per_rank: 4}
epochs: 100
optimizer: {name: sgd, lr: 0.001}
"""
# 16 MB of gradients, so that a link that is known by its name only leaves the step uncertain.
MODULE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset


def data():
    torch.manual_seed(0)
    tensors = torch.randn(64, 2000), torch.randint(4, (64,))
    return TensorDataset(*tensors), TensorDataset(*tensors)


def model():
    return nn.Sequential(nn.Linear(2000, 2000), nn.ReLU(), nn.Linear(2000, 4))
"""


@pytest.fixture
def job(tmp_path):
    (tmp_path / "wide_job.py").write_text(MODULE)
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def run_locally(run_program, run):
    """The program of a batch script, on ranks of this machine."""
    words = [f"--steps={STEPS}" if word.startswith("--steps=") else word for word in run["program"]]
    np = str(run["nodes"] * run["ranks_per_node"])
    own = [sys.executable, "-P", "-m", "hvdtrain.cli.main", "run", "-np", np, "--no-gpus", "--", *words]
    ended = run_program(own)
    assert ended.code == 0, ended.err


def test_proposed_runs_narrow_the_prediction(hvdtrain, run_program, job, tmp_path):
    profiled = hvdtrain("profile", job, "-np", "1", "--steps", STEPS, "--no-gpus")
    assert profiled.code == 0, profiled.err
    where = ["--network", "PCIe", "--gpus-per-node", "2", "--max-gpus", "2"]
    proposed = hvdtrain("calibrate", "profile.json", *where, "--job", job, "--out", "runs", "--json")
    assert proposed.code == 0, proposed.err
    runs = proposed.document["runs"]
    assert runs, proposed.document["verdict"]
    for run in runs:
        assert (run["nodes"], run["ranks_per_node"]) == (1, 2)
        run_locally(run_program, run)
    read = hvdtrain("calibrate", "--read", "runs", "--json")
    assert read.code == 0, read.err
    document = read.document
    assert [run["state"] for run in document["runs"]] == ["measured"] * len(runs)
    assert document["narrowed"], document
    assert document["width"] < document["former_width"]
    # The prediction for two ranks has come nearer to what the profile on two ranks measured.
    told = json.loads((tmp_path / "runs" / "profile-1x2.json").read_text())
    step_s = sum(rank["step_s"] for rank in told["ranks"]) / 2
    row = document["predictions"][-1]
    assert row["gpus"] == 2
    former, now = (abs(math.log(row[name] / step_s)) for name in ("former_step_time_s", "step_time_s"))
    assert now < former

    advised = hvdtrain("advise", os.path.join("runs", "calibrated.json"), "--max-gpus", "2", "--json")
    assert advised.code == 0, advised.err
    for name in ("efficiency", "efficiency_low", "efficiency_high"):
        assert advised.document["predictions"][-1][name] == pytest.approx(row[name])

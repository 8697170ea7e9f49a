"""A run goes on under a launcher of somebody else's."""

import json

JOB = """
model: 'parts:net'
data: digits
batch: {global: 60}
epochs: 1
output: {tensorboard: false}
"""
PARTS = """
import os
from torch import nn
from hvdtrain.errors import InputError
def net():
    if os.environ.get("PLANT") and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        raise InputError("no such folder on this host")
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


def test_bad_input_of_one_rank_takes_nothing_from_a_run_that_was_to_go_on(bin_dir, run_program, tmp_path):
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "job.yaml").write_text(JOB)
    argv = [str(bin_dir / "mpirun"), "-np", "2", "--bind-to", "none", str(bin_dir / "hvdtrain"), "train"]
    argv += ["job.yaml", "--run-dir", "run", "--resume"]
    assert run_program(argv).code == 0
    run = tmp_path / "run"
    status, before = status_of(run), precious(run)
    assert {"checkpoints/step-24/state.pt", "metrics.jsonl"} <= before.keys()
    more = [*argv, "--set", "epochs=2"]
    ended = run_program(more, {"PLANT": "1"})
    assert ended.code == 2, ended.err
    assert "no such folder on this host" in ended.err
    assert status_of(run) == status
    assert precious(run) == before
    assert run_program(more).code == 0
    assert status_of(run)["result"]["steps"] == 48


def status_of(run):
    return json.loads((run / "status.json").read_text())


def precious(run):
    """What a run cannot make again: all but what each launch writes anew."""
    anew = {"job.yaml", "plan.json", "status.json", "rank-0.log", "rank-1.log"}
    files = [path for path in run.rglob("*") if path.is_file() and path.name not in anew]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}

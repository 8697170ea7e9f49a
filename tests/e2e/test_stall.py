"""A run that stands still is ended, and the silent rank is named."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
JOB = """
model: {name: digits_cnn, args: {num_classes: 10, channels: 1, width: 4}}
data: 'sleepy:data'
batch: {global: 60}
epochs: 10000
stall: {step_s: 4}
output: {tensorboard: false}
"""
DATA = """
import os, time, torch

class Sleepy(torch.utils.data.Dataset):
    read = 0
    def __len__(self):
        return 400
    def __getitem__(self, index):
        Sleepy.read += 1
        if os.environ.get("OMPI_COMM_WORLD_RANK") == os.environ.get("SLEEPER") and Sleepy.read > 130:
            time.sleep(600)
        return torch.randn(1, 8, 8), index % 10

def data():
    return Sleepy(), torch.utils.data.Subset(Sleepy(), range(6))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "sleepy.py").write_text(DATA)
    return tmp_path


def train(folder, size, *options, **env):
    argv = [
        sys.executable,
        "-P",
        "-m",
        "hvdtrain.cli.main",
        "train",
        "job.yaml",
        "-np",
        str(size),
        "--slots",
        "3",
    ]
    return subprocess.Popen(
        [*argv, "--run-dir", "run", *options],
        cwd=folder,
        env={**os.environ, **AS_ROOT, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_rank_that_waits_for_its_data(folder):
    process = train(folder, 3, SLEEPER="1")
    told, _ = process.communicate(timeout=120)
    assert process.returncode == 4, told
    assert told.count("stalled: rank 1 is silent in loading; ranks 0, 2 are waiting in reduction") == 1
    autopsy = (folder / "run" / "autopsy.txt").read_text()
    assert [f"rank {rank}: in" in autopsy for rank in range(3)] == [True, True, True]
    assert "sleepy.py" in autopsy  # where rank 1 sleeps
    assert "synchronize" in autopsy  # what the others wait in


def is_rank_1(process):
    try:
        is_rank = process.cmdline()[1:] == ["-P", "-m", "hvdtrain.train.rank"]
        return is_rank and process.environ()["OMPI_COMM_WORLD_RANK"] == "1"
    except psutil.Error:  # it has ended
        return False


def test_a_stopped_rank(folder):
    """Case F9: it cannot even report."""
    process = train(folder, 2, "--set", "backend=ddp", SLEEPER="none")
    ranks = []
    while not (ranks and (folder / "run" / "metrics.jsonl").exists()):
        assert process.poll() is None
        ranks = [child for child in psutil.Process(process.pid).children(recursive=True) if is_rank_1(child)]
        time.sleep(0.1)
    while not (folder / "run" / "metrics.jsonl").read_text():
        time.sleep(0.1)
    ranks[0].send_signal(signal.SIGSTOP)
    told, _ = process.communicate(timeout=120)
    assert process.returncode == 4, told
    assert "rank 1 is silent: no report, stopped or gone; rank 0 is waiting in" in told, told
    assert not ranks[0].is_running() or ranks[0].status() == psutil.STATUS_ZOMBIE

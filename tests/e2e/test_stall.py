"""A run that stands still is ended, and the silent rank is named."""

import signal
import time

import psutil
import pytest

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


@pytest.fixture
def train(folder, start):
    """Starts the job on some ranks."""

    def call(size, *options, **env):
        words = ("train", "job.yaml", "-np", size, "--slots", 3, "--run-dir", "run")
        return start(*words, *options, **env)

    return call


def test_a_rank_that_waits_for_its_data(folder, train):
    running = train(3, SLEEPER="1")
    assert running.wait() == 4, running.log
    told = "stalled: rank 1 is silent in loading; ranks 0, 2 are waiting in reduction"
    assert running.log.count(told) == 1
    autopsy = (folder / "run" / "autopsy.txt").read_text()
    assert [f"rank {rank}: in" in autopsy for rank in range(3)] == [True, True, True]
    assert "sleepy.py" in autopsy  # where rank 1 sleeps
    assert "synchronize" in autopsy  # what the others wait in


def test_a_stopped_rank(folder, train):
    """Case F9: it cannot even report."""
    running = train(2, "--set", "backend=ddp", SLEEPER="none")
    metrics = folder / "run" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text()):
        assert running.process.poll() is None
        time.sleep(0.1)
    stopped = running.ranks()[1]
    stopped.send_signal(signal.SIGSTOP)
    assert running.wait() == 4, running.log
    assert "rank 1 is silent: no report, stopped or gone; rank 0 is waiting in" in running.log, running.log
    assert not stopped.is_running() or stopped.status() == psutil.STATUS_ZOMBIE


SLOW_DISK = """
import time
from hvdtrain.train import keeper

save = keeper.save_checkpoint

def save_slowly(*args, **facts):
    time.sleep(7)
    return save(*args, **facts)

keeper.save_checkpoint = save_slowly
"""


def test_a_long_save_is_none(folder, train):
    """All ranks wait for rank 0, which waits for the disk: between steps, and at the end."""
    (folder / "sleepy.py").write_text(DATA + SLOW_DISK)
    shorter = ("--set", "epochs=1", "--set", "stall.step_s=3", "--set", "checkpoint.every_steps=3")
    running = train(2, *shorter, SLEEPER="none")
    assert running.wait() == 0, running.log

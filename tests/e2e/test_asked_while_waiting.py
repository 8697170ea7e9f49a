"""A run that is asked to end while it waits for its data saves and ends, without waiting much longer."""

import contextlib
import json
import signal
import time

import psutil
import pytest

JOB = """
model: {name: digits_cnn, args: {num_classes: 10, channels: 1, width: 4}}
data: {source: 'slow:data', workers: 0}
batch: {global: 20}
epochs: 2
preemption: {signals: [SIGTERM, SIGUSR1]}
output: {tensorboard: false}
"""
# SLOW names the data whose first sample on each rank takes SLOW_S seconds, once the run has begun: before
# that one is looked at. A file tells of each rank that waits.
DATA = """
import os, time, torch
from pathlib import Path

class Slow(torch.utils.data.Dataset):
    def __init__(self, name, count):
        self.name, self.count, self.is_read = name, count, False
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        is_slow = self.name in os.environ.get("SLOW", "")
        if is_slow and not self.is_read and "running" in Path("run/status.json").read_text():
            self.is_read = True
            Path(f"waits-{os.environ['OMPI_COMM_WORLD_RANK']}").touch()
            time.sleep(float(os.environ["SLOW_S"]))
        return torch.full((1, 8, 8), index / 100), index % 10

def data():
    return Slow("train", 100), Slow("validation", 40)
"""
WORDS = ("train", "job.yaml", "-np", 2, "--slots", 2, "--run-dir", "run", "--resume")
LONG_S = "3600"  # nobody waits for it


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "slow.py").write_text(DATA)
    return tmp_path


def rank_of(running, rank):
    """A rank itself: its loader processes have the same command line."""
    found = {}
    for process in running.family():
        with contextlib.suppress(psutil.Error, KeyError):
            if process.cmdline()[1:] == ["-P", "-m", "hvdtrain.train.rank"]:
                found[process.pid] = process
    ranks = [process for process in found.values() if process.ppid() not in found]
    return next(one for one in ranks if one.environ()["OMPI_COMM_WORLD_RANK"] == str(rank))


def wait_until_all_wait(folder, running):
    deadline = time.monotonic() + 100
    while len(list(folder.glob("waits-*"))) < 2:
        assert running.process.poll() is None, running.log
        assert time.monotonic() < deadline, running.log
        time.sleep(0.05)


def status_of(folder):
    return json.loads((folder / "run" / "status.json").read_text())


def model_of(folder, step):
    return (folder / "run" / "checkpoints" / f"step-{step}" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(("slow", "step"), [("train", 0), ("validation", 5)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_all_ranks_wait_for_loader_processes(folder, start, slow, step, number):
    """The batch never comes; a rank alone hears of the signal, and all of them end at once."""
    words = (*WORDS, "--set", "data.workers=1")
    running = start(*words, SLOW=slow, SLOW_S=LONG_S)
    wait_until_all_wait(folder, running)
    rank_of(running, 1).send_signal(number)
    assert running.wait(90) == 75, running.log
    assert (status_of(folder)["state"], status_of(folder)["step"]) == ("preempted", step)
    running = start(*words)
    assert running.wait() == 0, running.log
    assert f"going on from step-{step}" in running.log
    found = model_of(folder, 10)
    undisturbed = start(*WORDS, "--run-dir", "run/other")
    assert undisturbed.wait() == 0, undisturbed.log
    assert (folder / "run/other/checkpoints/step-10/model.safetensors").read_bytes() == found


@pytest.mark.parametrize(("slow", "step"), [("train", 1), ("validation", 5)])
def test_ranks_that_read_themselves_end_with_the_batch(folder, start, slow, step):
    running = start(*WORDS, SLOW=slow, SLOW_S="6")
    wait_until_all_wait(folder, running)
    rank_of(running, 1).send_signal(signal.SIGUSR1)
    assert running.wait(90) == 75, running.log
    assert (status_of(folder)["state"], status_of(folder)["step"]) == ("preempted", step)


def test_the_command_is_asked(folder, start):
    running = start(*WORDS, "--set", "data.workers=1", SLOW="train", SLOW_S=LONG_S)
    wait_until_all_wait(folder, running)
    running.process.send_signal(signal.SIGTERM)
    assert running.wait(90) == 75, running.log
    assert status_of(folder)["state"] == "preempted"


STALLED = """
stall: {start_s: 60, most_s: 8, step_s: 10}
"""


def test_a_slow_first_batch_is_no_stall(folder, start):
    """It takes longer than a step may, and the first one of the run took as long."""
    (folder / "job.yaml").write_text(JOB + STALLED)
    running = start(*WORDS, SLOW="train validation", SLOW_S="14")
    assert running.wait() == 0, running.log


def test_a_first_batch_that_never_comes_is_one(folder, start):
    """Ranks that look for their first batches are found waiting, and the one without is named."""
    (folder / "job.yaml").write_text(JOB + STALLED)
    data = DATA.replace("is_slow = ", 'is_slow = os.environ["OMPI_COMM_WORLD_RANK"] == "1" and ')
    (folder / "slow.py").write_text(data)
    running = start(*WORDS, "--set", "data.workers=1", SLOW="validation", SLOW_S=LONG_S)
    assert running.wait() == 4, running.log
    assert "stalled: rank 1 is silent in loading; rank 0 is waiting in agreement" in running.log

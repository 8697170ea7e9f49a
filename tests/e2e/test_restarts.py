"""A job that failed starts again by itself, and stops where that is no use."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

# Open MPI refuses root by default.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
HVDTRAIN = [sys.executable, "-P", "-m", "hvdtrain.cli.main"]
JOB = """
name: it
model: {name: digits_cnn, args: {width: 8}}
data: digits
batch: {global: 60, uneven: split}
epochs: 6
checkpoint: {every_steps: 5}
output: {tensorboard: false}
"""
FAILING = """
name: it
model: {name: digits_cnn, args: {num_classes: 10, channels: 1, width: 4}}
data: 'failing:data'
batch: {global: 20}
epochs: 2
checkpoint: {every_steps: 2}
output: {tensorboard: false}
"""
# A step takes 0.2 s and more: each one is told of.
DATA = """
import time, torch

class Failing(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        time.sleep(0.015)
        if index == 77:
            raise RuntimeError("the disk is gone")
        return torch.full((1, 8, 8), index / 400), index % 10

def data():
    return Failing(), torch.utils.data.Subset(Failing(), range(6))
"""


@pytest.fixture
def start(tmp_path):
    """Starts the command in a folder with the job, its output in a file; ends what is left of it."""
    started = []
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "failing.yaml").write_text(FAILING)
    (tmp_path / "failing.py").write_text(DATA)

    def call(*words):
        with (tmp_path / "log").open("a") as log:
            process = subprocess.Popen(
                [*HVDTRAIN, *words], cwd=tmp_path, env={**os.environ, **AS_ROOT}, stdout=log, stderr=log
            )
        started.append(process)
        return process

    yield call
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def log_of(folder):
    return (folder / "log").read_text()


def wait_until(is_so, process):
    deadline = time.monotonic() + 100
    while not is_so():
        assert process.poll() is None, "it ended before"
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def has_checkpoint(run, step):
    steps = [int(path.parent.name[5:]) for path in run.glob("checkpoints/step-*/manifest.json")]
    return any(found >= step for found in steps)


def joined_ranks(process):
    """The training processes below ``hvdtrain run``, in the order of their ranks."""
    found = {}
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error, KeyError):  # one may have ended, or not yet begun
            if child.cmdline()[1:] == [*HVDTRAIN[1:], "train", "job.yaml"]:
                found[int(child.environ()["OMPI_COMM_WORLD_RANK"])] = child
    return [found[rank] for rank in sorted(found)]


def test_ranks_of_run_go_on_in_their_directory(start, tmp_path):
    words = ["run", "-np", "2", "--max-restarts", "2", "--", *HVDTRAIN, "train", "job.yaml"]
    undisturbed = start(*words)
    assert undisturbed.wait(120) == 0, log_of(tmp_path)
    process = start(*words)  # whose directory has another name: the first one is taken
    run = tmp_path / "runs" / "it-2"
    wait_until(lambda: has_checkpoint(run, 20), process)
    joined_ranks(process)[1].kill()
    assert process.wait(120) == 0, log_of(tmp_path)
    assert "rank 1 on host" in log_of(tmp_path)
    assert "note: starting again from step" in log_of(tmp_path)
    assert "1 restart left" in log_of(tmp_path)
    assert "\x1e" not in log_of(tmp_path)
    assert sorted(path.name for path in run.parent.iterdir()) == ["it", "it-2"]
    assert json.loads((run / "status.json").read_text())["state"] == "done"
    last = "checkpoints/step-144/model.safetensors"
    assert (run / last).read_bytes() == (run.parent / "it" / last).read_bytes()


def test_a_program_is_told_its_life(hvdtrain):
    code = "echo life $HVDTRAIN_RESTART; exit $((HVDTRAIN_RESTART < 2 ? 7 : 0))"
    ended = hvdtrain("run", "--max-restarts", "3", "--json", "--", "sh", "-c", code)
    assert ended.code == 0, ended.err
    assert (ended.document["restarts"], ended.document["no_restart"]) == (2, "")
    assert [line for line in ended.err.splitlines() if line.startswith("life")] == [
        "life 0",
        "life 1",
        "life 2",
    ]
    used_up = hvdtrain("run", "--max-restarts", "1", "--json", "--", "sh", "-c", "exit 7")
    assert (used_up.code, used_up.document["restarts"]) == (1, 1)
    assert used_up.document["no_restart"] == "it failed after 1 restart, all that --max-restarts allows"
    assert "note: no restart: it failed after 1 restart" in used_up.err


def test_wrong_input_is_not_tried_again(hvdtrain):
    ended = hvdtrain("run", "--max-restarts", "3", "--", "no-such-program")
    assert ended.code == 2
    assert "starting again" not in ended.err
    ended = hvdtrain("run", "--max-restarts", "1", "--timeout", "1", "--", "sleep", "60")
    assert ended.code == 4
    assert "starting again" not in ended.err


def test_time_limit_holds_for_all_lives(hvdtrain):
    """Nine pauses are minutes. The limit comes in one of them, or in a life that began before it."""
    ended = hvdtrain("run", "--max-restarts", "9", "--timeout", "3", "--", "sh", "-c", "exit 1")
    assert "note: starting again" in ended.err or ended.code == 4
    told = {1: "note: no restart: the 3 s of --timeout are over", 4: "did not end within its time limit of"}
    assert told[ended.code] in ended.err


def test_restarts_are_for_who_starts_the_ranks(hvdtrain):
    train = [*HVDTRAIN, "train", "--max-restarts", "1"]
    ended = hvdtrain("run", "-np", "2", "--", *train)
    assert ended.code == 2
    assert "--max-restarts inside a launch" in ended.err
    assert "hvdtrain run --max-restarts" in ended.err
    for verb in (["run", "--min-ranks", "1", "--", "true"], ["train", "--min-ranks", "1"]):
        assert "--min-ranks: given without --max-restarts" in hvdtrain(*verb).error


def test_a_failure_that_comes_back_ends_it(start, tmp_path):
    """The sample that cannot be read is read at the same step each time."""
    process = start("train", "failing.yaml", "--max-restarts", "9")
    assert process.wait(120) == 1
    log = log_of(tmp_path)
    assert log.count("starting again from") == 1
    assert re.search(
        r"note: no restart: it failed at step \d+ twice, with no checkpoint made in between", log
    )
    assert json.loads((tmp_path / "runs" / "it" / "status.json").read_text())["state"] == "failed"


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_in_the_pause(start, tmp_path, number):
    process = start("train", "failing.yaml", "--max-restarts", "9")
    wait_until(lambda: (tmp_path / "log").exists() and "starting again from" in log_of(tmp_path), process)
    process.send_signal(number)
    assert process.wait(60) == 75, log_of(tmp_path)
    status = json.loads((tmp_path / "runs" / "it" / "status.json").read_text())
    assert status["state"] == "preempted"
    assert f"preempted by {number.name} before it started again" in log_of(tmp_path)

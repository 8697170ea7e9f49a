"""Ranks go and come while a training runs: it goes on, and no sample is lost or read twice."""

import contextlib
import json
import os
import sys
import time

import psutil
import pytest
import torch

from hvdtrain.train.checkpoint import load_checkpoint

# 260 samples are 4 full steps of 60 and a short one in each epoch.
JOB = """
name: it
model: {name: digits_cnn, args: {num_classes: 10, channels: 1, width: 4}}
data: {source: 'slow:data', workers: %d}
batch: {global: 60, uneven: split}
epochs: 6
optimizer: {name: sgd, lr: 0.05, momentum: 0.9, weight_decay: 0.001}
schedule: {name: cosine, warmup_epochs: 1}
checkpoint: {every_steps: 1000, every_epochs: 3}
output: {tensorboard: false, metrics_every_steps: 1}
"""
DATA = """
import os, time, torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 260
    def __getitem__(self, index):
        time.sleep(float(os.environ.get("HVDTRAIN_TEST_SLEEP_S", 0)))
        values = torch.Generator().manual_seed(index)
        return torch.rand(1, 8, 8, generator=values), index % 10

def data():
    return Slow(), torch.utils.data.Subset(Slow(), range(20))
"""
STEPS = 30
SLOWLY = {"HVDTRAIN_TEST_SLEEP_S": "0.003"}
# A rank under hvdtrain train, and one of hvdtrain run -- hvdtrain train.
PROGRAMS = (["-P", "-m", "hvdtrain.train.elastic"], ["-P", "-m", "hvdtrain.cli.main", "train"])


def write_job(folder, workers=0):
    (folder / "job.yaml").write_text(JOB % workers)
    (folder / "slow.py").write_text(DATA)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The run of one rank that nothing happens to."""
    from tests.conftest import HVDTRAIN, run_command

    folder = tmp_path_factory.mktemp("undisturbed")
    write_job(folder)
    ended = run_command([*HVDTRAIN, "train", "job.yaml", "--run-dir", "run"], folder)
    assert ended.code == 0, ended.err
    return folder / "run"


def lines_of(run):
    with contextlib.suppress(OSError):
        return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return []


def wait_for(is_so, running):
    deadline = time.monotonic() + 100
    while not is_so():
        assert running.process.poll() is None, running.log
        assert time.monotonic() < deadline, running.log
        time.sleep(0.02)


def ranks_of(running):
    """The training processes by the rank with which they started."""
    found = {}
    for child in running.family():
        with contextlib.suppress(psutil.Error, KeyError):  # one may have ended, or not yet begun
            words = child.cmdline()[1:]
            is_rank = any(words[: len(program)] == program for program in PROGRAMS)
            # The loader's processes come after the rank that they have their command line from.
            if is_rank and "--elastic" not in words:
                found.setdefault(int(child.environ()["HOROVOD_RANK"]), child)
    return found


def assert_undisturbed(run, undisturbed):
    """As ``tests/mpi/test_equivalence.py`` compares: sums over ranks are rounded in another order."""
    names = ("step", "epoch")
    lines, expected = lines_of(run), lines_of(undisturbed)
    assert [[line[name] for name in names] for line in lines] == [
        [line[name] for name in names] for line in expected
    ]
    for line, other in zip(lines, expected, strict=True):
        for name in [name for name in line if not name.endswith("_s")]:  # those are times and rates
            assert line[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5), (line, name)
    saved, reference = (load_checkpoint(one / "checkpoints" / f"step-{STEPS}") for one in (run, undisturbed))
    for name, value in reference["model"].items():
        assert torch.allclose(saved["model"][name], value, rtol=1e-4, atol=1e-5), name
    assert saved["samples"] == reference["samples"] == 6 * 260


def test_rank_0_is_killed_and_the_other_one_goes_on(tmp_path, start, undisturbed):
    write_job(tmp_path, workers=1)
    words = ("train", "job.yaml", "--elastic", "-np", "2", "--slots", "2", "--commit-steps", "4")
    running = start(*words, "--run-dir", "run", "--json", **SLOWLY)
    run = tmp_path / "run"
    wait_for(lambda: len(lines_of(run)) >= 8, running)
    ranks_of(running)[0].kill()
    assert running.wait() == 0, running.log
    assert_undisturbed(run, undisturbed)
    assert json.loads(running.log.splitlines()[-1])["size"] == 1
    assert "note: rank 0 on host" in running.log
    assert "committed in memory by 2 rank(s), with 1" in running.log
    assert json.loads((run / "status.json").read_text())["state"] == "done"


def test_a_slot_more_in_the_hostfile_becomes_a_rank(tmp_path, start, undisturbed):
    write_job(tmp_path)
    hosts = tmp_path / "my hosts"
    hosts.write_text("# this machine\nlocalhost slots=1\n")
    train = [sys.executable, "-P", "-m", "hvdtrain.cli.main", "train", "job.yaml", "--run-dir", "run"]
    options = ("--hostfile", hosts, "--max-ranks", "2", "--commit-steps", "2")
    running = start("run", "--elastic", *options, "--", *train, **SLOWLY)
    wait_for(lambda: len(lines_of(tmp_path / "run")) >= 3, running)
    hosts.write_text("localhost slots=3\n")
    assert running.wait() == 0, running.log
    assert "committed in memory by 1 rank(s), with 2" in running.log
    assert_undisturbed(tmp_path / "run", undisturbed)


def test_asked_to_end_it_saves_and_a_resumed_run_goes_on(tmp_path, start, undisturbed):
    write_job(tmp_path)
    words = ("train", "job.yaml", "-np", "2", "--slots", "2", "--run-dir", "run")
    running = start(*words, "--elastic", **SLOWLY)
    wait_for(lambda: len(lines_of(tmp_path / "run")) >= 4, running)
    running.process.terminate()
    assert running.wait() == 75, running.log
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["state"], status["reason"]) == ("preempted", "SIGTERM")
    running = start(*words, "--resume")
    assert running.wait() == 0, running.log
    assert f"going on from step-{status['step']}" in running.log
    assert_undisturbed(tmp_path / "run", undisturbed)


def test_fewer_ranks_than_asked_for_end_it(tmp_path, start):
    write_job(tmp_path)
    words = ("train", "job.yaml", "--elastic", "-np", "2", "--slots", "2", "--min-ranks", "2")
    running = start(*words, "--run-dir", "run", **SLOWLY)
    wait_for(lambda: len(lines_of(tmp_path / "run")) >= 2, running)
    ranks_of(running)[1].kill()
    assert running.wait() == 137, running.log
    assert "fewer ranks are left than --min-ranks asks for" in running.log
    assert os.fspath(tmp_path / "run" / "logs" / "rank-1.log") in running.log

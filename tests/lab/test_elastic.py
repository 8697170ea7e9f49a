"""Ranks that come and go on several hosts: by a hostfile over ssh, and inside a Slurm job."""

from __future__ import annotations

import json
import re
import runpy
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from hvdtrain.process import end_group

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(find_spec("horovod") is None, reason="needs Horovod: make build-horovod"),
]

RESTARTS = runpy.run_path(str(Path(__file__).with_name("test_restarts.py")))
DATA = RESTARTS["DATA"]
# 400 samples are 20 steps of an epoch, which three ranks share unevenly.
JOB = """
name: it
model: {name: digits_cnn, args: {num_classes: 10, channels: 1, width: 4}}
data: 'slow:data'
batch: {global: 20, uneven: split}
epochs: 5
checkpoint: {every_steps: 1000}
output: {tensorboard: false, metrics_every_steps: 1}
"""
# What the documentation asks for where hosts may vanish without a word.
KEEPALIVE = "Host *\n  ServerAliveInterval 2\n  ServerAliveCountMax 2\n"


def train(lab, *words):
    return [lab.python, "-P", "-m", "hvdtrain.cli.main", "train", *words, "job.yaml"]


@pytest.fixture(scope="module")
def undisturbed(lab, tmp_path_factory):
    """The metrics of the run of one rank that nothing happens to, a step a line."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "slow.py").write_text(DATA.replace("time.sleep", "float"))
    (folder / "job.yaml").write_text(JOB)
    done = lab.exec("h1", train(lab, "-np", "1"), cwd=folder, timeout=120)
    assert done.returncode == 0, done.stderr
    return lines_of(folder / "runs" / "it")


@pytest.fixture
def elastic(lab, tmp_path):
    """Starts an elastic training on a host, its output in a file."""
    (tmp_path / "slow.py").write_text(DATA)
    (tmp_path / "job.yaml").write_text(JOB)
    ssh = lab.folder / "home" / ".ssh"
    ssh.mkdir(exist_ok=True)
    (ssh / "config").write_text(KEEPALIVE)
    started = []

    def call(host, *words, around=(), env=None):
        run = [lab.python, "-P", "-m", "hvdtrain.cli.main", "run", "--elastic", "--commit-steps=2"]
        argv = [*around, *run, *words, "--", *train(lab)]
        into = ["sh", "-c", 'exec "$@" > log 2>&1', "sh"]
        started.append(lab.start(host, [*into, *argv], cwd=tmp_path, env=env))
        return started[-1]

    yield call
    for process in started:
        end_group(process.pid)
        process.communicate()
    (ssh / "config").unlink()


def lines_of(run):
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def await_step(folder, step, patience_s=90):
    deadline = time.monotonic() + patience_s
    while not [line for line in lines_of(folder / "runs" / "it") if line["step"] >= step]:
        assert time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.1)


def await_sizes(folder, *sizes, patience_s=90):
    """Waits until the training has had these numbers of ranks, and goes on with the last of them."""
    log, deadline = folder / "log", time.monotonic() + patience_s
    while sizes_in(log.read_text()) != list(sizes):
        assert time.monotonic() < deadline, (sizes, log.read_text())
        time.sleep(0.1)
    await_step(folder, lines_of(folder / "runs" / "it")[-1]["step"] + 2)


def sizes_in(text):
    """The numbers of ranks that a training went on with."""
    return [int(size) for size in re.findall(r"committed in memory by \d+ rank\(s\), with (\d+)", text)]


def assert_undisturbed(folder, expected):
    """Each step once, over the same samples: sums over other ranks are rounded in another order."""
    lines = lines_of(folder / "runs" / "it")
    assert [line["step"] for line in lines] == [line["step"] for line in expected]
    for line, other in zip(lines, expected, strict=True):
        for name in [name for name in line if not name.endswith("_s")]:  # those are times and rates
            assert line[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5), (name, line)
    assert json.loads((folder / "runs" / "it" / "status.json").read_text())["state"] == "done"


def test_hosts_of_a_hostfile_go_and_come(lab, elastic, undisturbed, tmp_path):
    """One vanishes without a word, one is taken out of the file, and comes back."""
    hosts = tmp_path / "hosts"
    hosts.write_text("h1 slots=1\nh2 slots=1\nh3 slots=1\n")
    process = elastic("h1", "--hostfile=hosts", "--env=HOROVOD_GLOO_TIMEOUT_SECONDS=20")
    await_step(tmp_path, 4)
    lab.poweroff("h3")
    try:
        await_sizes(tmp_path, 2)
        hosts.write_text("h1 slots=1\n")
        await_sizes(tmp_path, 2, 1)
        hosts.write_text("h1 slots=1\nh2 slots=1\n")
        await_sizes(tmp_path, 2, 1, 2)
        assert process.wait(120) == 0, (tmp_path / "log").read_text()
    finally:
        lab.poweron("h3")
    assert_undisturbed(tmp_path, undisturbed)
    assert lab.left_over("h1") == lab.left_over("h2") == []


def test_nodes_of_a_slurm_job_go_and_come(slurm, elastic, undisturbed, tmp_path):
    """The administrator takes one out, and gives it back; then it crashes."""
    around = ["salloc", "--quiet", "--no-kill", "--nodes=2", "--ntasks-per-node=1", "--nodelist=h1,h2"]

    def set_state(*words):
        argv = ["scontrol", "update", "NodeName=h2", *words]
        return slurm.exec("head", argv, env=slurm.slurm_env)

    process = elastic("head", around=around, env=slurm.slurm_env)
    await_step(tmp_path, 4)
    assert set_state("State=FAIL", "Reason=test").returncode == 0
    try:
        await_sizes(tmp_path, 1)
        assert set_state("State=RESUME").returncode == 0
        await_sizes(tmp_path, 1, 2)
        slurm.crash("h2")
        await_sizes(tmp_path, 1, 2, 1)
        assert process.wait(120) == 0, (tmp_path / "log").read_text()
    finally:
        slurm.exec("head", ["scancel", "--user=root"], env=slurm.slurm_env)
        slurm.poweron("h2")
        slurm.restart_slurmd("h2")
        set_state("State=RESUME")  # refused where Slurm has found it down and taken it back already
        RESTARTS["await_idle"](slurm)
    assert_undisturbed(tmp_path, undisturbed)
    assert slurm.left_over("h1") == []

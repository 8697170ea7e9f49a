"""Trainings that lose a host and go on: over ssh, and inside a Slurm job."""

from __future__ import annotations

import json
import time
from importlib.util import find_spec

import pytest

from hvdtrain.process import end_group

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(find_spec("horovod") is None, reason="needs Horovod: make build-horovod"),
]

# 20 steps make an epoch; the samples of a step take 0.1 s and more on two ranks.
JOB = """
name: it
model: {{name: digits_cnn, args: {{num_classes: 10, channels: 1, width: 4}}}}
data: 'slow:data'
batch: {{{batch}}}
epochs: {epochs}
checkpoint: {{every_steps: 5}}
output: {{tensorboard: false}}
"""
DATA = """
import time, torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.full((1, 8, 8), index / 400), index % 10

def data():
    return Slow(), torch.utils.data.Subset(Slow(), range(6))
"""
LAST = "checkpoints/step-60/model.safetensors"


@pytest.fixture
def folder(tmp_path):
    """Holds a job that is slow enough to lose a host."""
    (tmp_path / "slow.py").write_text(DATA)

    def write(batch="global: 20", epochs=3):
        (tmp_path / "job.yaml").write_text(JOB.format(batch=batch, epochs=epochs))
        return tmp_path

    return write


@pytest.fixture
def start(lab, tmp_path):
    """Starts ``hvdtrain run`` on h1 around the training, its output in a file."""
    started = []

    def call(*words, train=()):
        hvdtrain = [lab.python, "-P", "-m", "hvdtrain.cli.main"]
        argv = [*hvdtrain, "run", *words, "--", *hvdtrain, "train", "job.yaml", *train]
        into = ["sh", "-c", 'exec "$@" > log 2>&1', "sh"]
        started.append(lab.start("h1", [*into, *argv], cwd=tmp_path))
        return started[-1]

    yield call
    for process in started:
        end_group(process.pid)
        process.communicate()


@pytest.fixture
def lost(slurm):
    """Switches hosts off, and puts them right again at the end."""
    off = []

    def switch_off(host):
        slurm.poweroff(host)
        off.append(host)

    yield switch_off
    slurm.exec("head", ["scancel", "--user=root"], env=slurm.slurm_env)
    for host in off:
        slurm.poweron(host)
        slurm.restart_slurmd(host)
    await_idle(slurm)


@pytest.fixture
def cut(lab):
    """Pulls cables out, and gives what puts one in again; the end does it too."""
    out = []

    def pull(host):
        lab.cut(host)
        out.append(host)

    yield pull
    for host in out:
        lab.heal(host)


@pytest.fixture(scope="module")
def undisturbed(lab, tmp_path_factory):
    """The last weights of two ranks that nothing happened to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "slow.py").write_text(DATA.replace("time.sleep", "float"))
    (folder / "job.yaml").write_text(JOB.format(batch="global: 20", epochs=3))
    words = ["-m", "hvdtrain.cli.main", "train", "-np", "2", "--slots", "2", "job.yaml"]
    done = lab.exec("h1", [lab.python, "-P", *words], cwd=folder, timeout=120)
    assert done.returncode == 0, done.stderr
    return (folder / "runs" / "it" / LAST).read_bytes()


def await_checkpoint(run, step, log):
    deadline = time.monotonic() + 60
    while not any(int(path.parent.name[5:]) >= step for path in run.glob("checkpoints/step-*/manifest.json")):
        assert time.monotonic() < deadline, log.read_text() if log.exists() else "no log"
        time.sleep(0.1)


def assert_done(run, size):
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["result"]["size"]) == ("done", size)


def test_a_host_is_lost_and_the_rest_goes_on(lab, folder, start, lost, tmp_path):
    """Rank 0 was on the host that is lost."""
    folder("per_rank: 10", epochs=2)
    process = start("-H", "h2:1,h1:1", "--max-restarts", "2", "--min-ranks", "1")
    run, log = tmp_path / "runs" / "it", tmp_path / "log"
    await_checkpoint(run, 5, log)
    lost("h2")
    assert process.wait(120) == 0, log.read_text()
    told = log.read_text()
    assert "host h2" in told
    assert "note: host h2 does not answer: " in told
    assert "note: going on with 1 of 2 ranks" in told
    assert "the global batch is 10 samples and was 20" in told
    assert_done(run, 1)
    assert lab.left_over("h1") == []


def test_a_cut_link_ends_it_and_it_is_resumed(lab, folder, start, cut, undisturbed, tmp_path):
    """Without --min-ranks one host is not enough."""
    folder()
    hosts = ("-H", "h1:1,h2:1")
    process = start(*hosts, "--max-restarts", "2")
    run, log = tmp_path / "runs" / "it", tmp_path / "log"
    await_checkpoint(run, 5, log)
    cut("h2")
    assert process.wait(60) == 1, log.read_text()
    told = log.read_text()
    assert "host h2" in told
    assert told.splitlines()[-1] == (
        "hvdtrain: note: no restart: 1 rank of 2 can be started; --min-ranks allows fewer"
    )
    lab.heal("h2")
    assert lab.left_over("h1") == lab.left_over("h2") == []
    process = start(*hosts, train=("--resume",))
    assert process.wait(120) == 0, log.read_text()
    assert "going on from step-" in log.read_text()
    assert (run / LAST).read_bytes() == undisturbed


def test_a_rank_0_that_is_cut_off_but_not_from_the_disk(lab, folder, start, cut, tmp_path):
    """It holds the run until its own stall limit ends it: nobody else writes there before."""
    job = folder("per_rank: 10") / "job.yaml"
    job.write_text(f"{job.read_text()}stall: {{step_s: 15, save_s: 15}}\n")
    process = start("-H", "h2:1,h1:1", "--max-restarts", "2", "--min-ranks", "1")
    run, log = tmp_path / "runs" / "it", tmp_path / "log"
    await_checkpoint(run, 5, log)
    cut("h2")
    assert process.wait(180) == 0, log.read_text()
    told = log.read_text()
    assert "note: going on with 1 of 2 ranks" in told
    assert f"a rank of the last life still holds {run}" in told
    assert_done(run, 1)
    lab.heal("h2")
    assert lab.left_over("h1") == lab.left_over("h2") == []


def test_a_spare_host_stands_in(lab, folder, start, lost, undisturbed, tmp_path):
    """With as many ranks as before the end is bit for bit that of a run that lost nothing."""
    folder()
    process = start("-np", "2", "-H", "h1:1,h2:1,h3:1", "--max-restarts", "2")
    run, log = tmp_path / "runs" / "it", tmp_path / "log"
    await_checkpoint(run, 25, log)
    lost("h2")
    assert process.wait(120) == 0, log.read_text()
    assert_done(run, 2)
    assert {rank["host"] for rank in json.loads((run / "plan.json").read_text())["ranks"]} == {"h1", "h3"}
    assert (run / LAST).read_bytes() == undisturbed
    assert lab.left_over("h3") == []


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_a_node_of_a_slurm_job_is_lost(slurm, folder, lost, tmp_path, launcher):
    folder()
    env = {**slurm.slurm_env, "XDG_CONFIG_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    argv = [slurm.python, "-P", "-m", "hvdtrain.cli.main", "submit", "--nodes=2", "--log=log"]
    argv += ["--max-restarts=3", "--min-ranks=1", f"--launcher={launcher}", "--run-dir=run", "job.yaml"]
    done = slurm.exec("head", argv, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    job, log = done.stdout.split()[1], tmp_path / "log"
    await_checkpoint(tmp_path / "run", 5, log)
    ranks = json.loads((tmp_path / "run" / "plan.json").read_text())["ranks"]
    lost(ranks[1]["host"])  # not the one on which the batch script runs
    followed = slurm.exec("head", [*argv[:4], "logs", "-f", job], env=env, cwd=tmp_path, timeout=120)
    assert followed.returncode == 0, followed.stdout + followed.stderr
    assert f"host {ranks[1]['host']} does not answer" in log.read_text()
    assert "going on with 1 of 2 ranks" in log.read_text()
    assert_done(tmp_path / "run", 1)
    assert slurm.left_over(ranks[0]["host"]) == []


def await_idle(slurm):
    deadline = time.monotonic() + 60
    words = ["sinfo", "--noheader", "--Node", "--format=%T"]
    while slurm.exec("head", words, env=slurm.slurm_env).stdout.split() != ["idle"] * 4:
        assert time.monotonic() < deadline
        time.sleep(0.5)

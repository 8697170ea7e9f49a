"""A run that was stopped goes on as if nothing had happened."""

import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

# Open MPI refuses root by default.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
JOB = """
model: {name: digits_cnn, args: {width: 8}}
data: digits
batch: {global: 60, uneven: split}
epochs: 3
optimizer: {name: sgd, lr: 0.05, momentum: 0.9}
schedule: {name: cosine, warmup_epochs: 1}
checkpoint: {every_steps: 5, keep_last: 3}
output: {tensorboard: false}
"""
LAST = "step-72"


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The run that was never stopped, on two ranks."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "job.yaml").write_text(JOB)
    argv = [sys.executable, "-P", "-m", "hvdtrain.cli.main", *words()]
    subprocess.run(argv, cwd=folder, env={**os.environ, **AS_ROOT}, check=True, timeout=120)
    return folder


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def words(size=2):
    return ["train", "job.yaml", "-np", str(size), "--slots", "3", "--run-dir", "run", "--resume"]


@pytest.fixture
def train(folder, start):
    """Starts the job, or goes on with it."""

    def call(*options, size=2, **env):
        return start(*words(size), *options, **env)

    return call


def model_of(run):
    return (run / "checkpoints" / LAST / "model.safetensors").read_bytes()


def metrics_of(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.endswith("_s")} for line in lines]


def status_of(run):
    return json.loads((run / "status.json").read_text())


def wait_for_step(run, step, running):
    """Until a checkpoint of that step or a later one is whole."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        steps = [int(path.parent.name[5:]) for path in run.glob("checkpoints/step-*/manifest.json")]
        if any(found >= step for found in steps):
            return
        assert running.process.poll() is None, running.log
        time.sleep(0.02)
    raise AssertionError("no checkpoint")


def assert_as_never_stopped(run, reference):
    assert status_of(run)["state"] == "done"
    assert model_of(run) == model_of(reference / "run")
    assert metrics_of(run) == metrics_of(reference / "run")


def test_killed_at_random_moments(folder, reference, train):
    seed = random.randrange(10**6)
    draw = random.Random(seed)
    for kill in range(2):
        running = train()
        wait_for_step(folder / "run", 5 + 25 * kill, running)
        time.sleep(draw.random() * 0.1)
        victims = running.ranks()
        for victim in [draw.choice(victims)] if kill else victims:
            victim.kill()
        assert running.wait(60) == 137, f"seed {seed}"
    running = train()
    assert running.wait(120) == 0, running.log
    assert_as_never_stopped(folder / "run", reference)


def test_at_once_after_the_launcher_was_killed(folder, reference, train):
    """Its ranks may write for some moments yet: what goes on waits for them."""
    running = train()
    wait_for_step(folder / "run", 10, running)
    assert is_locked(folder / "run" / "checkpoints")
    running.process.kill()
    running.wait()
    running = train()
    assert running.wait(120) == 0, running.log
    assert_as_never_stopped(folder / "run", reference)


def is_locked(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_one_rank_is_asked_to_end(folder, reference, train, number):
    # Case F7: all ranks finish the same step, save once, and end with 75.
    running = train("--set", f"preemption.signals=[{number.name}]", "--set", "checkpoint.every_steps=1000")
    while "epoch 1/3" not in running.log:
        assert running.process.poll() is None
        time.sleep(0.05)
    running.ranks()[1].send_signal(number)
    assert running.wait(60) == 75
    status = status_of(folder / "run")
    assert status["state"] == "preempted"
    assert [path.name for path in (folder / "run" / "checkpoints").glob("step-*")] == [
        f"step-{status['step']}"
    ]
    assert f"preempted after step {status['step']}" in running.log
    running = train()
    assert running.wait(120) == 0
    assert f"going on from step-{status['step']}" in running.log
    assert_as_never_stopped(folder / "run", reference)


def test_the_clock_of_the_allocation(hvdtrain, folder):
    (folder / "job.yaml").write_text(JOB + "preemption: {margin_s: 30}\n")
    end_s = str(int(time.time()) + 20)
    ended = hvdtrain("train", "job.yaml", "--run-dir", "run", "--json", env={"HVDTRAIN_END_TIME": end_s})
    assert ended.code == 75, ended.err
    document = ended.document
    assert document["exit_code"] == 75
    assert "the allocation is about to end" in document["error"]


def test_a_failed_run_starts_again_by_itself(folder, reference, train):
    running = train("--max-restarts", "2")
    wait_for_step(folder / "run", 20, running)
    running.ranks()[1].kill()
    assert running.wait(120) == 0, running.log
    log = running.log
    assert "rank 1 on host" in log
    assert "note: starting again from step" in log
    assert "1 restart left" in log
    assert_as_never_stopped(folder / "run", reference)


def test_another_world_goes_on(folder, reference, train):
    """Two ranks, then three with the other engine, then one: no sample lost or repeated."""
    run = folder / "run"
    for size, backend, stop in ((2, "horovod", 10), (3, "ddp", 40), (1, "horovod", 0)):
        running = train("--set", f"backend={backend}", size=size)
        if stop:
            wait_for_step(run, stop, running)
            running.process.send_signal(signal.SIGTERM)
            assert running.wait(60) == 75, running.log
        else:
            assert running.wait(120) == 0, running.log
    found, wanted = metrics_of(run)[-1], metrics_of(reference / "run")[-1]
    assert found["step"] == wanted["step"] == 72
    # The engines and worlds sum in other orders.
    for key in ("epoch_loss", "validation_loss"):
        assert found[key] == pytest.approx(wanted[key], rel=2e-2)


def test_a_damaged_checkpoint_is_passed_over(folder, reference, train):
    shutil.copytree(reference / "run", folder / "run")
    checkpoints = folder / "run" / "checkpoints"
    data = (checkpoints / LAST / "state.pt").read_bytes()
    (checkpoints / LAST / "state.pt").write_bytes(data[: len(data) // 2])
    (checkpoints / ".step-99.1").mkdir()
    running = train()
    assert running.wait(120) == 0
    log = running.log
    assert f"passed over {LAST}: state.pt has" in log
    assert "going on from step-70" in log
    assert ".step-99.1" in log
    assert_as_never_stopped(folder / "run", reference)


def test_what_may_and_may_not_differ(folder, reference, train):
    shutil.copytree(reference / "run", folder / "run")
    before = status_of(folder / "run")
    for change, key in (("model.args.width=9", "model.args.width"), ("optimizer.lr=0.1", "optimizer.lr")):
        running = train("--set", change)
        assert running.wait(60) == 2
        assert key in running.log
    assert status_of(folder / "run") == before
    running = train("--set", "epochs=4", "--set", "output.log_every_s=1")
    assert running.wait(120) == 0
    assert status_of(folder / "run")["result"]["steps"] == 96


def test_listing_checking_exporting_pruning(hvdtrain, folder, reference):
    run = folder / "run"
    shutil.copytree(reference / "run", run)
    ended = hvdtrain("checkpoints", run, "--verify", "--json")
    assert ended.code == 0
    rows = ended.document["checkpoints"]
    assert [row["step"] for row in rows] == [72, 70, 65]
    assert rows[0]["metrics"]["validation_accuracy"] > 0.5
    hvdtrain("checkpoints", run, "--export", folder / "model.safetensors")
    assert (folder / "model.safetensors").read_bytes() == model_of(run)
    (run / "checkpoints" / "step-70" / "state.pt").unlink()
    damaged = hvdtrain("checkpoints", run, "--verify")
    assert damaged.code == 3
    assert "step-70" in damaged.out
    assert "DAMAGED: state.pt is missing" in damaged.out
    assert hvdtrain("checkpoints", run, "--prune", "1", "--json").document["removed"] == ["step-65"]
    assert hvdtrain("checkpoints", folder).code == 2

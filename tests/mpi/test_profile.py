"""profile on real ranks: whose time goes where, and that looking changes nothing."""

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hvdtrain.backends.choose import horovod_is_built
from hvdtrain.launch.job import launch_job
from hvdtrain.launch.machine import local_plan
from hvdtrain.launch.supervise import failure_text
from hvdtrain.scaling.profile import read_profile

PROGRAMS = Path(__file__).parent / "programs"
PARTS = ("load_s", "forward_s", "backward_s", "exposed_s", "optimizer_s", "wait_s", "other_s")
LIMIT_S = 170
JOB = """
model: 'profile_parts:model'
data: {source: 'profile_parts:data', args: {seconds: SECONDS, slow_rank: RANK}}
batch: {per_rank: 4}
epochs: 1
optimizer: {name: sgd, lr: 0.01}
"""
pytestmark = pytest.mark.mpi
needs_horovod = pytest.mark.skipif(not horovod_is_built(), reason="needs Horovod: make build-horovod")


@pytest.fixture
def job(tmp_path):
    """Writes a job whose samples take some time to read, on one rank or on all."""
    shutil.copy(PROGRAMS / "profile_parts.py", tmp_path)

    def written(seconds, rank="null"):
        path = tmp_path / "job.yaml"
        path.write_text(JOB.replace("SECONDS", str(seconds)).replace("RANK", str(rank)))
        return path

    return written


def check_sums(profile):
    for one in profile.ranks:
        assert sum(getattr(one, part) for part in PARTS) == pytest.approx(one.step_s, rel=1e-9)
        assert min(getattr(one, part) for part in PARTS) >= 0
    steps = profile.step_s
    assert 0 < steps.min <= steps.median <= steps.p95 <= steps.max
    assert profile.samples_per_s == pytest.approx(profile.global_batch / steps.mean)


@pytest.mark.parametrize(
    ("backend", "launcher", "size"),
    [
        pytest.param("horovod", "mpirun", 2, marks=needs_horovod),
        pytest.param("horovod", "mpirun", 3, marks=needs_horovod),
        ("ddp", "local", 2),
        ("ddp", "local", 3),
    ],
)
def test_looking_changes_nothing_and_a_known_noise_scale_is_found(backend, launcher, size):
    program = (sys.executable, str(PROGRAMS / "profile_exact.py"), backend)
    plan = replace(local_plan(size, 5, os.environ), program=program)
    lines = []
    outcome = launch_job(plan, lines.append, lambda _, event: None, launcher=launcher, timeout_s=LIMIT_S)
    told = [line.text for line in lines]
    assert outcome.exit_code == 0, (told, failure_text(outcome))
    assert sum(line.endswith("ok") for line in told) == size


@pytest.mark.parametrize("backend", [pytest.param("horovod", marks=needs_horovod), "ddp"])
def test_a_slow_rank_is_named_and_the_other_waits(hvdtrain, job, tmp_path, backend):
    path = job(0.005, rank=1)  # 4 samples: 20 ms a step
    words = ["--steps", "12", "--warmup", "3", "--set", f"backend={backend}", "--trace", "trace.json"]
    ended = hvdtrain("profile", path, "-np", "2", *words)
    assert ended.code == 0, ended.err
    assert "slowest    rank 1 on " in ended.out
    assert "most of it in load" in ended.out
    profile = read_profile(tmp_path / "profile.json")
    check_sums(profile)
    fast, slow = profile.ranks
    assert (profile.source, profile.backend, profile.size, profile.steps) == ("profile", backend, 2, 12)
    assert slow.load_s > 0.02 > fast.load_s
    assert fast.wait_s > 0.01
    assert fast.wait_s > 5 * slow.wait_s
    assert profile.loader.capacity_samples_per_s < 200  # that of the slow rank
    assert (profile.gradients.num_tensors, profile.gradients.bytes) == (4, 4 * (16 * 32 + 32 + 32 * 4 + 4))
    assert len(profile.gradients.ready) == 4
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    waits = [event["dur"] for event in events if event["name"] == "wait" and event["pid"] == 0]
    assert len(waits) >= 10


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_slow_loader_is_seen_as_load(hvdtrain, job, tmp_path, accumulate):
    path = job(0.05)
    words = ["--steps", "6", "--warmup", "2", "--set", f"batch.accumulate={accumulate}", "--json"]
    ended = hvdtrain("profile", path, "--set", "backend=single", *words)
    assert ended.code == 0, ended.err
    profile = read_profile(tmp_path / "profile.json")
    assert ended.document == profile.document()
    check_sums(profile)
    (one,) = profile.ranks
    # 4 samples of 50 ms; all else is small, also on a busy machine.
    assert one.load_s >= 0.2
    assert one.load_s == max(getattr(one, part) for part in PARTS)
    assert one.wait_s == 0
    assert (profile.accumulate, profile.noise_scale) == (accumulate, None)


@needs_horovod
def test_a_script_of_the_users_own(hvdtrain, tmp_path):
    shutil.copy(PROGRAMS / "profile_parts.py", tmp_path)
    program = [sys.executable, "profile_parts.py"]
    words = ["--steps", "15", "--warmup", "3", "--output", "mine.json"]
    ended = hvdtrain("profile", "-np", "2", *words, "--", *program)
    assert ended.code == 0, ended.err
    assert "the script is done" in ended.out.splitlines()
    profile = read_profile(tmp_path / "mine.json")
    check_sums(profile)
    fast, slow = profile.ranks
    assert (profile.source, profile.job, profile.global_batch) == ("script", "profile_parts", 8)
    assert profile.steps == 15
    assert slow.load_s > 0.012 > fast.load_s
    assert fast.wait_s > 5 * slow.wait_s


def test_a_script_that_takes_too_few_steps(hvdtrain, tmp_path):
    shutil.copy(PROGRAMS / "profile_parts.py", tmp_path)
    program = [sys.executable, "profile_parts.py"]
    ended = hvdtrain("profile", "--steps", "50", "--warmup", "100", "--", *program, "--lr", "1")
    assert ended.code == 2
    assert "the program ended without a profile" in ended.error
    assert "no profile: the run ended after 64 steps" in ended.out + ended.err
    assert not (tmp_path / "profile.json").exists()


def test_a_training_keeps_a_profile_of_itself(hvdtrain, job, tmp_path):
    path = job(0.0)
    words = ["--run-dir", "run", "--set", "epochs=20", "--set", "backend=ddp", "--launcher", "local"]
    ended = hvdtrain("train", path, "-np", "2", "--slots", "2", *words, "--json")
    assert ended.code == 0, ended.err
    profile = read_profile(tmp_path / "run" / "profile.json")
    check_sums(profile)
    assert (profile.source, profile.size, profile.total_steps) == ("train", 2, 160)
    assert profile.steps > 25
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(line["noise_scale"] >= 0 for line in lines if "noise_scale" in line)


def test_a_training_names_the_rank_that_stays_slow(hvdtrain, job):
    path = job(0.01, rank=1)  # 4 samples: 40 ms a step, so that ten seconds are 250 of them
    words = ["--set", "epochs=50", "--set", "backend=ddp", "--launcher", "local"]
    ended = hvdtrain("train", path, "-np", "2", "--slots", "2", *words)
    assert ended.code == 0, ended.err
    told = [line for line in (ended.out + ended.err).splitlines() if "stays slower than the others" in line]
    assert len(told) == 1
    assert "rank 1 on " in told[0]
    assert "most of it in load" in told[0]

"""A real file system of a few MB that fills up under a run, is taken away, or may not be written."""

import json
import os
import subprocess
import time

import pytest

JOB = """
model: {name: digits_cnn, args: {width: 24}}
data: digits
batch: {global: 120, uneven: split}
epochs: 2
checkpoint: {every_steps: 4, keep_last: 50}
output: {tensorboard: false}
"""
WORDS = ("train", "job.yaml", "-np", 2, "--slots", 2, "--run-dir", "small disk/run")


@pytest.fixture
def mount(tmp_path):
    """Mounts a file system of a size in the test's folder; unmounted at the end.

    Tests name it before ``start``, so that what they started has ended by then.
    """
    (tmp_path / "job.yaml").write_text(JOB)
    place = tmp_path / "small disk"
    place.mkdir()

    def call(options):
        argv = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        if subprocess.run(argv, capture_output=True).returncode:
            if os.environ.get("HVDTRAIN_LAB") == "require":
                pytest.fail("only root mounts a file system, and HVDTRAIN_LAB=require is set")
            pytest.skip("only root mounts a file system")
        return place

    yield call
    while os.path.ismount(place):
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def steps_of(hvdtrain, place):
    listed = hvdtrain("checkpoints", place / "run", "--verify", "--json")
    assert listed.code == 0, listed.err
    return [row["step"] for row in listed.document["checkpoints"]]


def test_a_full_disk_stops_all_ranks_and_leaves_what_was_whole(hvdtrain, mount, start):
    place = mount("size=3m")
    running = start(*WORDS)
    assert running.wait() == 1, running.log
    told = "a checkpoint could not be saved: No space left on device"
    errors = [line for line in running.log.splitlines() if line.startswith("hvdtrain: error: ")]
    assert len(errors) == 1, running.log
    assert told in errors[0]
    assert "earlier checkpoints are whole" in errors[0]
    assert json.loads((place / "run" / "status.json").read_text())["state"] == "failed"
    steps = steps_of(hvdtrain, place)
    assert steps
    assert not list((place / "run" / "checkpoints").glob(".step-*"))
    # With room it goes on from the newest.
    subprocess.run(["mount", "-o", "remount,size=60m", str(place)], check=True)
    running = start(*WORDS, "--resume")
    assert running.wait() == 0, running.log
    assert f"going on from step-{steps[0]}" in running.log


def test_a_full_disk_may_be_lived_with(hvdtrain, mount, start):
    place = mount("size=3m")
    running = start(*WORDS, "--set", "checkpoint.on_failure=continue")
    assert running.wait() == 0, running.log
    steps = steps_of(hvdtrain, place)
    assert steps[0] < 24
    result = json.loads((place / "run" / "status.json").read_text())["result"]
    assert result["steps"] == 24
    assert result["saved_step"] == steps[0]
    assert f"step 24, has no checkpoint: the newest is of step {steps[0]}" in running.log


def test_no_room_for_the_first_checkpoint(mount, start):
    mount("size=60k")
    running = start(*WORDS)
    assert running.wait() == 1
    assert "a checkpoint could not be saved: No space left on device" in running.log


def test_a_disk_that_may_not_be_written(mount, start):
    mount("size=3m,ro")
    running = start(*WORDS)
    assert running.wait() == 2
    assert "run directory cannot be written: Read-only file system" in running.log


def test_a_disk_that_becomes_read_only(hvdtrain, mount, start):
    place = mount("size=30m")
    running = start(*WORDS, "--set", "epochs=1000", "--set", "checkpoint.keep_last=2")
    while not list(place.glob("run/checkpoints/step-*/manifest.json")):
        assert running.process.poll() is None, running.log
        time.sleep(0.02)
    # By its name only: files that stand open keep a plain remount from happening.
    subprocess.run(["mount", "--bind", str(place), str(place)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)
    assert running.wait() == 1, running.log
    errors = [line for line in running.log.splitlines() if line.startswith("hvdtrain: error: ")]
    assert len(errors) == 1, running.log
    assert "Read-only file system" in errors[0]
    assert "earlier checkpoints are whole" in errors[0]
    assert "Traceback" not in running.log
    assert steps_of(hvdtrain, place)

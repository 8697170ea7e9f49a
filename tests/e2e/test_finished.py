"""A run that has reached its end is told so and kept; files that are damaged lose nobody's run."""

import hashlib
import json
import shutil

import pytest

from tests.conftest import HVDTRAIN, run_command

JOB = """
model: {name: digits_cnn, args: {width: 4}}
data: digits
batch: {global: 240}
epochs: 2
checkpoint: {every_epochs: 1}
output: {tensorboard: false}
"""
TRAIN = ("train", "job.yaml", "--run-dir", "run", "--resume")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a job and its finished run."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "job.yaml").write_text(JOB)
    ended = run_command([*HVDTRAIN, *TRAIN], folder)
    assert ended.code == 0, ended.err
    return folder


@pytest.fixture
def run(finished, tmp_path):
    """A copy of it in the folder in which commands run."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


def content(folder):
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_nothing_is_left_to_do(hvdtrain, run):
    before = content(run)
    ended = hvdtrain(*TRAIN)
    assert ended.code == 0
    told = f"{run} is done after 2 epochs, 12 steps: nothing is left to do; with more of them it goes on"
    assert ended.err.splitlines() == [f"note: {told}"]
    assert ended.out.startswith("accuracy 0.")
    document = hvdtrain(*TRAIN, "--json").document
    assert document == json.loads((run / "status.json").read_text())["result"] | {"run_dir": str(run)}
    assert hvdtrain(*TRAIN, "--set", "epochs=1").code == 0
    assert content(run) == before


def test_ranks_that_join_hear_it_too(run_program, run, bin_dir):
    before = content(run)
    mpirun = [str(bin_dir / "mpirun"), "-np", "2", "--oversubscribe", "--bind-to", "none"]
    ended = run_program([*mpirun, *HVDTRAIN, *TRAIN])
    assert ended.code == 0, ended.err
    assert ended.err.count("nothing is left to do") == 1
    assert ended.out.count("accuracy 0.") == 1
    assert content(run) == before


def test_with_more_epochs_it_goes_on(hvdtrain, run):
    ended = hvdtrain(*TRAIN, "--set", "epochs=3", "--json")
    assert ended.code == 0, ended.err
    assert "going on from step-12" in ended.err
    assert ended.document["steps"] == 18


def test_an_end_whose_checkpoint_is_damaged_is_made_again(hvdtrain, run):
    checkpoint = run / "checkpoints" / "step-12"
    model = (checkpoint / "model.safetensors").read_bytes()
    (checkpoint / "model.safetensors").write_bytes(model[:-9])
    ended = hvdtrain(*TRAIN)
    assert ended.code == 0, ended.err
    assert "passed over step-12" in ended.err
    assert (checkpoint / "model.safetensors").read_bytes() == model


def test_more_epochs_without_any_checkpoint_are_refused(hvdtrain, run):
    shutil.rmtree(run / "checkpoints")
    before = content(run)
    assert hvdtrain(*TRAIN).code == 0
    ended = hvdtrain(*TRAIN, "--set", "epochs=3")
    assert ended.code == 2
    assert "the run is done after 12 steps, and has no checkpoint to go on from" in ended.error
    assert content(run) == before


def test_metrics_that_were_cut_short_are_mended(hvdtrain, run):
    metrics = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(metrics + b'{"step": 13, "ep')
    ended = hvdtrain(*TRAIN, "--set", "epochs=3")
    assert ended.code == 0, ended.err
    assert "note: metrics.jsonl: its last line was cut short and is left out" in ended.err
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 18
    assert (run / "metrics.jsonl").read_bytes().startswith(metrics)


def test_metrics_that_are_none_are_kept_aside(hvdtrain, run):
    garbage = bytes(range(256)) * 4
    (run / "metrics.jsonl").write_bytes(garbage + b"\n")
    ended = hvdtrain(*TRAIN, "--set", "epochs=3")
    assert ended.code == 0, ended.err
    assert "that cannot be read went to metrics.unreadable" in ended.err
    assert (run / "metrics.unreadable").read_bytes() == garbage + b"\n"


# What a file holds, and the exit code and words of a run that should go on with more epochs.
DAMAGES = {
    "job.yaml": {
        "empty": (b"", 2, "job.yaml: the job file is empty"),
        "cut": (b"name: job\nmodel: {na", 2, "job.yaml:2: not YAML"),
        "binary": (b"\x80\xff\x00\x01", 2, "job.yaml: not a text in UTF-8"),
        "schema": (b"name: job\nmodle: x\n", 2, "unknown key 'modle'"),
        "folder": (None, 2, "a folder of this name, where its file belongs"),
    },
    # What is not told there stands in the checkpoints.
    "status.json": {
        "empty": (b"", 0, "going on from step-12"),
        "cut": (b'{"schema": 1, "sta', 0, "going on from step-12"),
        "binary": (b"\x80\xff\x00\x01", 0, "going on from step-12"),
        "schema": (b'{"schema": 99, "state": ["done"]}', 0, "going on from step-12"),
        "result": (b'{"schema": 1, "state": "done", "result": [1]}', 0, "going on from step-12"),
        "deep": (b"[" * 100_000, 0, "going on from step-12"),
        "folder": (None, 2, "a folder of this name, where its file belongs"),
    },
    "metrics.jsonl": {
        "empty": (b"", 0, "going on from step-12"),
        "folder": (None, 2, "a folder of this name"),
    },
    "plan.json": {
        "binary": (b"\x80", 0, "going on from step-12"),
        "folder": (None, 2, "a folder of this name"),
    },
    "checkpoints": {"file": (b"", 2, "a file of this name, where its folder belongs")},
}
CASES = [(name, kind) for name, kinds in DAMAGES.items() for kind in kinds]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_damaged_files_of_a_run(hvdtrain, run, name, kind):
    damage, code, told = DAMAGES[name][kind]
    place = run / name
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    place.mkdir() if damage is None else place.write_bytes(damage)
    before = content(run)
    ended = hvdtrain(*TRAIN, "--set", "epochs=3", "--json")
    assert ended.code == code, ended.err
    if code:
        assert told in ended.error
        assert content(run) == before
    else:
        assert told in ended.err
        assert ended.document["steps"] == 18
        assert json.loads((run / "status.json").read_text())["state"] == "done"

"""profile as a command, without starting ranks: what it refuses, before anything is done."""

from pathlib import Path

import pytest

from hvdtrain.cli.main import main
from hvdtrain.cli.profile import _show
from hvdtrain.train.profile_request import ProfileRequest
from tests.unit.scaling.profiles import profile_document


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """No site file, and no launcher or scheduler around."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "OMPI_COMM_WORLD_RANK", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def refusal(capsys, *words):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line.removeprefix("hvdtrain: error: ")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--steps", "1"], "1 is not in the range 2<=x<=1000000"),
        (["--warmup", "0"], "0 is not in the range 1<=x<=1000000"),
        (["--output", "."], "--output: . is a folder; name a file"),
        (["--output", "none/profile.json"], "--output: there is no folder none; make it first"),
        (["--trace", "none/trace.json"], "--trace: there is no folder none; make it first"),
        (["none.yaml"], "none.yaml: no such job file"),
        (["--set", "optimizer.lr=-1"], "optimizer.lr"),
        (["--"], "no program behind --; legal: hvdtrain profile [OPTIONS] -- PROGRAM [ARGUMENT ...]"),
        (["--set", "seed=1", "--", "python"], "--set seed=1: a program has no job file; omit --set"),
        (["job.yaml", "--", "python"], "both the job file job.yaml and a program behind --"),
        (["-np", "65", "--set", "backend=ddp"], "64"),
        (["--launcher", "magic"], "magic"),
        (["-H", "a:x"], "-H: 'x' is no number of slots of a"),
    ],
)
def test_bad_input_is_one_line(capsys, tmp_path, words, told):
    assert told in refusal(capsys, "profile", *words)
    assert list(tmp_path.iterdir()) == []


def test_inside_a_launch_a_script_profiles_itself(capsys, monkeypatch):
    for name, value in {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2")
    told = refusal(capsys, "profile", "--", "python", "x.py")
    assert "set HVDTRAIN_PROFILE=FILE for the script instead" in told


def test_help_has_examples(capsys):
    assert main(["profile", "--help"]) == 0
    out = capsys.readouterr().out
    assert "hvdtrain profile -np 2 --steps 100 -- python script.py --lr 0.1" in out
    assert "[JOB | -- PROGRAM ...]" in out


def test_fewer_steps_than_were_asked_for_are_told(capsys):
    document = profile_document(steps=5)
    for steps, told in ((100, True), (5, False), (4, False)):
        assert _show(document, ProfileRequest(steps, 10, Path("p.json")), as_json=True) == 0
        note = "note: 5 of 100 steps were measured: the program took no more after its 10 of warm-up\n"
        assert (note in capsys.readouterr().err) is told

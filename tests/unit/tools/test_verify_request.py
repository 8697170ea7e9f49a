"""What ``hvdtrain verify`` refuses before it launches anything, and what all its runs have in common."""

import json

import pytest

from hvdtrain.cli.main import main
from hvdtrain.jobfile import load_job
from hvdtrain.tools.verify.request import make_request, parse_sizes


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """No launcher around, and an empty folder."""
    for name in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-np", "0"], "'0' is no number of ranks"),
        (["-np", "x"], "'x' is no number of ranks"),
        (["-np", "1,,2"], "'' is no number of ranks"),
        (["-np", "-1"], "'-1' is no number of ranks"),
        (["-np", "1,2.0"], "'2.0' is no number of ranks"),
        (["-np", "9" * 30], "is no number of ranks"),
        (["-np", "2,2"], "2 stands twice"),
        (["-np", "2"], "nothing to compare"),
        (["-np", "2", "--backend", "ddp"], "nothing to compare"),
        (["--steps", "0"], "--steps"),
        (["--steps", "two"], "--steps"),
        (["--backend", "ddp,mpi"], "no backend 'mpi'"),
        (["--backend", "single"], "single trains on one rank"),
        (["--backend", "ddp,ddp"], "1 rank with ddp stands twice"),
        (["--tolerance", "0"], "a tolerance of 0.0"),
        (["--tolerance", "nan"], "a tolerance of nan"),
        (["-np", "1,3", "--slots", "2"], "-np 3: more ranks than"),
        (["-np", "1,2", "--launcher", "nosuch"], "no launcher 'nosuch'"),
        (["missing.yaml"], "missing.yaml"),
        (["--set", "optimizer.lrate=1"], "lrate"),
        (["--set", "batch.global=1"], "1 samples for 2 ranks"),
        (["--set", "gradients.reduce=adasum"], "adasum is no mean"),
        (["--set", "data.source=nosuch:data"], "no module 'nosuch'"),
    ],
)
def test_bad_input_is_one_line_and_launches_nothing(capfd, tmp_path, words, told):
    assert main(["verify", "--slots", "4", *words]) == 2
    out, err = capfd.readouterr()
    (line,) = err.splitlines()
    assert line.startswith("hvdtrain: error: ")
    assert told in line
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_an_error_with_json_is_a_document(capfd):
    assert main(["verify", "-np", "1", "--json"]) == 2
    document = json.loads(capfd.readouterr().out)
    assert (document["schema"], document["exit_code"]) == (1, 2)


def test_inside_another_launch_it_is_refused(capfd, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2")
    assert main(["verify"]) == 2
    assert "inside a launch by" in capfd.readouterr().err


def test_sizes_keep_their_order():
    assert parse_sizes("3, 1,2") == (3, 1, 2)


def test_every_run_has_the_global_batch_of_the_first():
    job = load_job(None, ["batch.per_rank=7", "resume=auto", "tuning.timeline=t.json"])
    request = make_request(job, [3, 2], ["ddp"], steps=4)
    assert [run.text for run in request.runs] == ["3 ranks with ddp", "2 ranks with ddp"]
    for run in request.runs:
        its = request.job_of(run)
        assert (its.global_batch(run.size), its.batch.uneven, its.backend) == (21, "split", "ddp")
        assert (its.resume, its.tuning.timeline) == ("never", None)
        assert its.optimizer == job.optimizer
    assert make_request(load_job(None), [1, 2], [], steps=1).job.global_batch(2) == 64


@pytest.mark.parametrize(
    ("override", "tolerance"),
    [("seed=1", 1e-4), ("precision=bf16", 2e-2), ("tuning.compression=fp16", 2.5e-3)],
)
def test_the_tolerance_is_that_of_the_precision(override, tolerance):
    job = load_job(None, [override])
    assert make_request(job, [1, 2], ["ddp"], steps=1).tolerance == tolerance
    assert make_request(job, [1, 2], ["ddp"], steps=1, tolerance=0.5).tolerance == 0.5


def test_two_engines_on_one_number_of_ranks_can_be_compared():
    request = make_request(load_job(None), [1], ["ddp", "single"], steps=1)
    assert [run.text for run in request.runs] == ["1 rank with ddp", "1 rank with single"]

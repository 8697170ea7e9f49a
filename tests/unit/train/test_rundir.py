"""Who may write where."""

import json
import os
import threading
from pathlib import Path

import pytest

from hvdtrain.errors import InputError
from hvdtrain.jobfile import load_job
from hvdtrain.train.rundir import create_run_directory


@pytest.fixture
def job(tmp_path):
    return load_job(None, [f"output.dir={tmp_path / 'runs'}"])


def test_unnamed_runs_get_the_next_free_name(job, tmp_path):
    paths = [create_run_directory(job, None).path for _ in range(3)]
    assert [path.name for path in paths] == ["digits", "digits-2", "digits-3"]
    assert all((path / "job.yaml").exists() and (path / "logs").is_dir() for path in paths)


def test_a_directory_that_holds_a_run_is_refused_and_kept(job, tmp_path):
    run = create_run_directory(job, tmp_path / "mine")
    run.write_status("done")
    (run.path / "metrics.jsonl").write_text("precious\n")
    with pytest.raises(InputError, match=r"holds a run of job 'digits' \(done\).*--overwrite"):
        create_run_directory(job, tmp_path / "mine")
    assert (run.path / "metrics.jsonl").read_text() == "precious\n"


def test_overwrite_removes_the_run_and_nothing_else(job, tmp_path):
    run = create_run_directory(job, tmp_path / "mine")
    os.close(run.lock)
    run.metrics.write_text("old\n")
    (run.path / "notes.txt").write_text("mine")
    create_run_directory(job, tmp_path / "mine", overwrite=True)
    assert not run.metrics.exists()
    assert (run.path / "notes.txt").read_text() == "mine"


def test_discard_leaves_nothing_that_it_made(job, tmp_path):
    run = create_run_directory(job, tmp_path / "a" / "b")
    run.write_status("running")
    run.discard()
    assert not (tmp_path / "a").exists()


def test_discard_keeps_a_directory_that_was_there(job, tmp_path):
    (tmp_path / "there").mkdir()
    create_run_directory(job, tmp_path / "there").discard()
    assert list((tmp_path / "there").iterdir()) == []


def test_a_place_that_cannot_be_written(job, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written: Not a directory"):
        create_run_directory(job, tmp_path / "file" / "run")
    with pytest.raises(InputError, match="cannot be written"):
        create_run_directory(job, tmp_path / "file")
    with pytest.raises(InputError, match="cannot be written"):
        create_run_directory(job, Path("/proc/run"))


def test_status_is_replaced_whole(job, tmp_path):
    run = create_run_directory(job, None)
    run.write_status("running", step=1)
    run.write_status("done", step=2)
    status = json.loads((run.path / "status.json").read_text())
    assert (status["schema"], status["state"], status["step"]) == (1, "done", 2)
    assert not [path for path in run.path.iterdir() if path.name.startswith(".")]


def test_of_two_runs_that_start_at_once_one_gets_the_directory(job, tmp_path):
    """The check and the claim are apart: a run that came in between must not be joined."""
    (tmp_path / "mine").mkdir()
    outcomes = []
    barrier = threading.Barrier(8)

    def start():
        barrier.wait()
        try:
            outcomes.append(create_run_directory(job, tmp_path / "mine"))
        except InputError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(not isinstance(outcome, InputError) for outcome in outcomes) == 1


def test_a_failed_claim_leaves_no_parents(job, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError):
        create_run_directory(job, tmp_path / "file" / "a" / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_run_that_is_going_on_is_not_overwritten(job, tmp_path):
    run = create_run_directory(job, tmp_path / "mine")
    run.write_status("running")
    with pytest.raises(InputError, match="a run is going on in this directory"):
        create_run_directory(job, tmp_path / "mine", overwrite=True)
    assert (run.path / "status.json").exists()
    os.close(run.lock)
    create_run_directory(job, tmp_path / "mine", overwrite=True)
    assert not (run.path / "status.json").exists()


def test_a_name_that_is_too_long_is_told(job, tmp_path):
    with pytest.raises(InputError, match="cannot be written: File name too long"):
        create_run_directory(job, tmp_path / ("x" * 300))

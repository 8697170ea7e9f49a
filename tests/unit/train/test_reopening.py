"""Who may go on with a run, and in which state its directory is left."""

import errno
import fcntl
import json
import threading

import pytest

from hvdtrain.errors import InputError
from hvdtrain.jobfile import load_job
from hvdtrain.train import locking, replaced
from hvdtrain.train.locking import lock_directory, unlock
from hvdtrain.train.reopening import open_run_directory
from hvdtrain.train.rundir import RunDirectory, create_run_directory


@pytest.fixture
def job(tmp_path):
    return load_job(None, [f"output.dir={tmp_path / 'runs'}", "resume=auto"])


@pytest.fixture
def ended(job, tmp_path):
    """The directory of a run that ended."""
    run = create_run_directory(job, tmp_path / "mine")
    run.write_json("plan.json", {})
    run.metrics.write_text("old\n")
    (run.checkpoints / "step-9").mkdir()
    run.write_status("failed", exit_code=1)
    run.unlock()
    return run.path


def content(path):
    return {str(entry.relative_to(path)): entry.is_file() and entry.read_text() for entry in path.rglob("*")}


def test_a_run_that_never_went_on_is_as_it_was(job, ended):
    before = content(ended)
    run = open_run_directory(job, ended)
    assert json.loads((ended / "status.json").read_text())["state"] == "starting"
    run.discard()
    assert {name: text for name, text in content(ended).items() if name != "status.json"} == {
        name: text for name, text in before.items() if name != "status.json"
    }
    assert json.loads((ended / "status.json").read_text()) == json.loads(before["status.json"])


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_run_that_a_killed_overwrite_had_set_aside_goes_on(job, ended, is_begun):
    before = content(ended)
    if is_begun:
        killed = create_run_directory(job, ended, overwrite=True)
        killed.metrics.write_text("new\n")
        killed.unlock()
    else:
        replaced.set_aside(ended)  # killed before it wrote anything of its own
    run = open_run_directory(job, ended)
    assert run.earlier["state"] == "failed"
    assert content(ended).keys() == before.keys()
    assert run.metrics.read_text() == "old\n"
    run.accept()
    assert (run.checkpoints / "step-9").is_dir()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"state": "run'])
def test_a_status_without_content_is_no_obstacle(job, ended, text):
    """A machine that loses its power may leave the name of a file and not its content."""
    (ended / "status.json").write_text(text)
    run = open_run_directory(job, ended)
    run.discard()
    assert run.metrics.exists()
    assert replaced.state_of(ended) == "unknown"
    assert (run.checkpoints / "step-9").is_dir()


def test_another_job_is_refused_and_the_lock_is_left(job, ended):
    with pytest.raises(InputError, match="the run has seed 0, the job that is to go on with it 1"):
        open_run_directory(job.model_copy(update={"seed": 1}), ended)
    open_run_directory(job, ended)


@pytest.mark.parametrize("overwrite", [False, True])
def test_ranks_that_outlive_their_launcher_keep_others_out(job, ended, monkeypatch, overwrite):
    monkeypatch.setattr(locking, "_RANKS_END_S", 0.2)
    before = content(ended)
    rank = RunDirectory(ended)
    rank.begin_writing()
    with pytest.raises(InputError, match="ranks that were started in this directory still write"):
        open_run_directory(job, ended, overwrite=overwrite)
    assert content(ended) == before
    unlock(rank.writer)
    open_run_directory(job, ended, overwrite=overwrite)


def test_ranks_that_end_soon_are_waited_for(job, ended):
    rank = RunDirectory(ended)
    rank.begin_writing()
    ending = threading.Timer(0.5, unlock, (rank.writer,))
    ending.start()
    run = open_run_directory(job, ended)
    ending.join()
    # The launcher's lock is on the directory; that of the folder is its rank 0's to take.
    RunDirectory(ended).begin_writing()
    with pytest.raises(InputError, match="a run is going on"):
        lock_directory(run.path)


def test_where_there_are_no_locks_nobody_is_kept_out(job, ended, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    run = open_run_directory(job, ended)
    run.begin_writing()
    assert (run.lock, run.writer) == (None, None)

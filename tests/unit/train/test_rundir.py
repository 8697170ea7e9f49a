"""Who may write where."""

import json
import os
import threading
from pathlib import Path

import pytest

from hvdtrain.errors import InputError
from hvdtrain.jobfile import load_job
from hvdtrain.train import replaced
from hvdtrain.train.replaced import state_of
from hvdtrain.train.rundir import create_run_directory
from hvdtrain.train.store import commit


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


def save(run, step):
    beside = run.checkpoints / f".step-{step}.1"
    beside.mkdir()
    commit(beside, run.checkpoints / f"step-{step}", {"step": step})


@pytest.mark.parametrize("state", ["preempted", "failed", "running"])
def test_a_run_that_can_go_on_is_not_given_up_first(job, tmp_path, state):
    run = create_run_directory(job, tmp_path / "mine")
    run.write_status(state)
    run.unlock()
    lost = "choose another --run-dir, or pass --overwrite to lose that run, which has no checkpoint"
    with pytest.raises(InputError, match=rf"\({state}\); {lost}$"):
        create_run_directory(job, tmp_path / "mine")
    save(run, 3)
    kept = "pass --resume to go on with that run, choose another --run-dir, or pass --overwrite to lose it"
    with pytest.raises(InputError, match=rf"\({state}\); {kept}$"):
        create_run_directory(job, tmp_path / "mine")


@pytest.mark.parametrize("holder", ["launcher", "rank"])
def test_a_run_that_is_going_on_is_said_to_be(job, tmp_path, holder):
    run = create_run_directory(job, tmp_path / "mine")
    run.write_status("running")
    save(run, 3)
    if holder == "rank":
        run.begin_writing()
        run.unlock()
    told = r"\(running\), and a process is training there; wait for its end, or choose another --run-dir$"
    with pytest.raises(InputError, match=told):
        create_run_directory(job, tmp_path / "mine")


@pytest.fixture
def ended(job, tmp_path):
    """The directory of a run that ended, with a file of the user's beside it."""
    run = create_run_directory(job, tmp_path / "mine")
    run.metrics.write_text("old\n")
    (run.checkpoints / "step-9").mkdir()
    (run.path / "notes.txt").write_text("mine")
    run.write_status("done")
    run.unlock()
    return run.path


def content(path):
    return {str(entry.relative_to(path)): entry.is_file() and entry.read_text() for entry in path.rglob("*")}


def test_overwrite_loses_the_run_and_nothing_else_once_the_new_one_began(job, ended):
    run = create_run_directory(job, ended, overwrite=True)
    assert run.replaces
    run.accept()
    assert not run.replaces
    assert not run.metrics.exists()
    assert content(ended).keys() == {"job.yaml", "status.json", "events", "logs", "checkpoints", "notes.txt"}
    assert (ended / "notes.txt").read_text() == "mine"


def test_a_replaced_run_is_back_when_the_new_one_never_began(job, ended):
    before = content(ended)
    run = create_run_directory(job, ended, overwrite=True)
    run.metrics.write_text("new\n")
    (run.logs / "rank-0.log").write_text("new\n")
    run.discard()
    assert content(ended) == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_replaced_run_is_back_after_the_new_one_was_killed(job, ended, overwrite):
    before = content(ended)
    killed = create_run_directory(job, ended, overwrite=True)
    killed.metrics.write_text("new\n")
    killed.unlock()
    if not overwrite:
        with pytest.raises(InputError, match=r"holds a run of job 'digits' \(done\)"):
            create_run_directory(job, ended)
    else:
        create_run_directory(job, ended, overwrite=True).discard()
    assert content(ended) == before


def test_what_a_killed_overwrite_leaves_is_refused_for_what_it_is(job, tmp_path):
    """This process itself has locked the directory when it finds the run that was there before."""
    run = create_run_directory(job, tmp_path / "mine")
    run.write_status("preempted")
    save(run, 3)
    run.unlock()
    create_run_directory(job, run.path, overwrite=True).unlock()
    with pytest.raises(InputError, match=r"\(preempted\); pass --resume to go on with that run"):
        create_run_directory(job, run.path)


def test_a_move_that_was_cut_short_loses_nothing(job, ended, monkeypatch):
    before = content(ended)
    moved = []

    def stop_halfway(source, target):
        moved.append(source.name)
        if len(moved) == 3:
            raise KeyboardInterrupt
        os.rename(source, target)

    for function in (replaced.set_aside, replaced.put_back):
        moved.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", stop_halfway)
            with pytest.raises(KeyboardInterrupt):
                function(ended)
        replaced.put_back(ended)
        assert content(ended) == before
        replaced.set_aside(ended)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "names",
    [["logs/"], ["checkpoints/a.pt", "events/"], ["job.yaml"], ["metrics.jsonl"], ["x", "y", "z", "v"]],
)
def test_a_folder_that_is_no_run_is_never_taken_for_one(job, tmp_path, names, overwrite):
    mine = tmp_path / "mine"
    for name in names:
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).mkdir() if name.endswith("/") else (mine / name).write_text("precious")
    before = content(mine)
    with pytest.raises(InputError, match=r"holds files that are no run's: .*choose a new or an empty folder"):
        create_run_directory(job, mine, overwrite=overwrite)
    assert content(mine) == before


def test_the_root_of_the_machine_is_no_run_directory(job):
    with pytest.raises(InputError, match=r"^/: run directory holds files that are no run's"):
        create_run_directory(job, Path("/"), overwrite=True)


def test_the_first_failure_that_is_told_stays(job):
    run = create_run_directory(job, None)
    run.write_failure(1, "the cause")
    run.write_failure(143, "ended by SIGTERM")
    assert json.loads((run.path / "status.json").read_text())["error"] == "the cause"


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
    assert state_of(run.path) == "starting"


def test_a_name_that_is_too_long_is_told(job, tmp_path):
    with pytest.raises(InputError, match="cannot be written: File name too long"):
        create_run_directory(job, tmp_path / ("x" * 300))

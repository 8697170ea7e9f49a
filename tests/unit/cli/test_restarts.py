"""When a failed job starts again: what is told and counted between two lives."""

import signal

import pytest

from hvdtrain.cli.ending_signals import ending_signals
from hvdtrain.cli.restarts import Restarts, check_restarts
from hvdtrain.errors import InputError
from hvdtrain.launch.outcome import JobOutcome
from hvdtrain.launch.plan import LaunchPlan
from hvdtrain.launch.restart import Trail
from hvdtrain.topology.hosts import local_cluster, place
from hvdtrain.train.store import commit

FAILED = JobOutcome(1, 2)
PLAN = LaunchPlan(place(local_cluster(2)), ("true",), "python", {})


def make(run, step):
    beside = run / "checkpoints" / f".step-{step}.1"
    beside.mkdir(parents=True)
    (beside / "state.pt").write_bytes(b"state")
    commit(beside, run / "checkpoints" / f"step-{step}", {"step": step})


def test_with_growing_pauses_until_none_are_left(tmp_path, capsys):
    pauses = []
    restarts = Restarts(3, Trail(str(tmp_path)), pauses.append)
    for step in (0, 10, 20):
        if step:
            make(tmp_path, step)
        assert restarts.again(FAILED, PLAN)
        restarts.wait()
    make(tmp_path, 30)
    assert not restarts.again(FAILED, PLAN)
    assert restarts.why == "it failed after 3 restarts, all that --max-restarts allows"
    assert pauses == [1, 2, 4]
    assert capsys.readouterr().err.splitlines() == [
        "hvdtrain: note: starting again from the beginning (no checkpoint yet) in 1 s; 2 restarts left",
        "hvdtrain: note: starting again from step 10 in 2 s; 1 restart left",
        "hvdtrain: note: starting again from step 20 in 4 s; 0 restarts left",
    ]


def test_a_failure_that_comes_back_at_the_same_step_ends_it(tmp_path):
    trail = Trail(str(tmp_path))
    restarts = Restarts(9, trail, lambda _: None)
    make(tmp_path, 10)

    def fails_at(step):
        trail.take({"event": "step", "step": step, "steps": 100, "left_s": 1000.0})
        again = restarts.again(FAILED, PLAN)
        if again:
            restarts.wait()
        return again

    assert fails_at(15)
    assert fails_at(30)
    make(tmp_path, 20)
    assert fails_at(30)
    assert not fails_at(30)
    assert restarts.why == "it failed at step 30 twice, with no checkpoint made in between"


def test_a_training_that_takes_no_step_fails_at_its_checkpoint(tmp_path):
    make(tmp_path, 10)
    restarts = Restarts(9, Trail(str(tmp_path)), lambda _: None)
    assert restarts.again(FAILED, PLAN)
    restarts.wait()
    assert not restarts.again(FAILED, PLAN)
    assert "at step 10 twice" in restarts.why


def test_a_program_that_tells_nothing_has_all_its_restarts():
    restarts = Restarts(3, Trail(), lambda _: None)
    for used in range(3):
        assert restarts.environment() == {"HVDTRAIN_RESTART": str(used)}
        assert restarts.again(FAILED, PLAN)
        restarts.wait()
    assert not restarts.again(FAILED, PLAN)


def test_the_next_life_is_told_the_directory():
    restarts = Restarts(3, Trail(), lambda _: None)
    restarts.trail.take({"event": "run", "path": "/runs/x"})
    assert "HVDTRAIN_RUN_DIR" not in restarts.environment()
    restarts.wait()
    assert restarts.environment() == {"HVDTRAIN_RESTART": "1", "HVDTRAIN_RUN_DIR": "/runs/x"}


def test_not_unless_it_is_asked_for():
    restarts = Restarts(0, Trail())
    assert not restarts.again(FAILED, PLAN)
    assert (restarts.why, restarts.environment(), restarts.signals) == ("", {}, ())


def test_a_checkpoint_with_a_wrong_checksum_is_none_to_start_from(tmp_path):
    for step in (10, 20):
        make(tmp_path, step)
    (tmp_path / "checkpoints" / "step-20" / "state.pt").write_bytes(b"STATE")
    assert Restarts(1, Trail(str(tmp_path))).checkpoint == 10


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_the_pause(tmp_path, number):
    """With a checkpoint the run goes on later; without one the signal is the end."""
    restarts = Restarts(3, Trail(str(tmp_path)), lambda _: signal.raise_signal(number))
    with ending_signals(restarts.signals):
        with pytest.raises(SystemExit) as asked:
            restarts.wait()
        with pytest.raises(SystemExit):
            restarts.preempted(asked.value)
    make(tmp_path, 10)
    assert restarts.preempted(asked.value) == (
        f"preempted by {number.name} before it started again; the checkpoint of step 10 stands"
    )


def test_numbers_that_do_not_go_together():
    check_restarts(1, 2, 2)
    check_restarts(0, None, 2)
    with pytest.raises(InputError, match="--min-ranks: given without --max-restarts"):
        check_restarts(0, 1, 2)
    with pytest.raises(InputError, match="--min-ranks: 3 of 2; legal: 1 to 2"):
        check_restarts(1, 3, 2)

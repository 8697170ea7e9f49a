"""When a failed training starts again."""

import pytest

from hvdtrain.cli.restarts import Restarts
from hvdtrain.launch.outcome import JobOutcome
from hvdtrain.train.store import commit


def make(folder, step):
    beside = folder / f".step-{step}.1"
    beside.mkdir(parents=True)
    (beside / "state.pt").write_bytes(b"state")
    commit(beside, folder / f"step-{step}", {"step": step})


FAILED = JobOutcome(1, 2)


def test_with_growing_pauses_until_none_are_left(tmp_path):
    pauses = []
    restarts = Restarts(3, tmp_path, pauses.append)
    told = []
    for step in (0, 10, 20, 30):
        if step:
            make(tmp_path, step)
        told.append(restarts.again(FAILED, "rank 1 failed"))
    assert told[0] == "starting again from the beginning: there is no checkpoint yet; 2 restarts left"
    assert told[1] == "starting again from step 10; 1 restart left"
    assert told[2] == "starting again from step 20; 0 restarts left"
    assert told[3] == ""
    assert pauses == [1, 2, 4]


def test_a_failure_that_comes_back_before_another_checkpoint_ends_it(tmp_path):
    restarts = Restarts(9, tmp_path, lambda _: None)
    make(tmp_path, 10)
    assert restarts.again(FAILED, "boom")
    assert restarts.again(FAILED, "boom") == ""
    assert restarts.again(FAILED, "another one")
    make(tmp_path, 20)
    assert restarts.again(FAILED, "another one")


@pytest.mark.parametrize("outcome", [JobOutcome(2, 2), JobOutcome(75, 2), JobOutcome(143, 2, interrupted=15)])
def test_wrong_input_and_requests_to_end_are_no_failures(tmp_path, outcome):
    assert Restarts(9, tmp_path, lambda _: None).again(outcome, "told") == ""


def test_not_unless_it_is_asked_for(tmp_path):
    assert Restarts(0, tmp_path).again(FAILED, "boom") == ""


def test_a_checkpoint_with_a_wrong_checksum_is_none_to_start_from(tmp_path):
    for step in (10, 20):
        make(tmp_path, step)
    (tmp_path / "step-20" / "state.pt").write_bytes(b"STATE")
    assert "from step 10" in Restarts(1, tmp_path, lambda _: None).again(FAILED, "boom")

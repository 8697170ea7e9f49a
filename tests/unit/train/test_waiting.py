"""Who is named where ranks of a script wait in vain."""

import threading

import pytest

from hvdtrain.errors import InputError
from hvdtrain.train import waiting as module
from hvdtrain.train.waiting import Waiting, verdict_on


class Ended(threading.Event):
    def __call__(self, code):
        self.code = code
        self.set()


@pytest.fixture
def ended():
    return Ended()


def stall(waiting, ended):
    """A wait without end, in a part of a call."""
    with waiting.call("run.step"), waiting.call("a part of it"):
        assert ended.wait(60)


def test_ranks_that_share_no_folder_tell_of_themselves(ended, capfd):
    waiting = Waiting(0.1, 1, 3, None, end=ended)
    waiting.stepped()
    stall(waiting, ended)
    assert ended.code == 4
    told = capfd.readouterr().err
    assert told.startswith("hvdtrain: error: stalled: rank 1: waits in run.step at test_waiting.py:")
    assert "after 1 step, for " in told
    assert told.count("\n") == 1


def test_a_folder_that_cannot_be_made_is_none(ended, capfd, tmp_path):
    stall(Waiting(0.1, 0, 2, tmp_path / "not" / "there", end=ended), ended)
    assert "the ranks share no folder" in capfd.readouterr().err


def test_a_rank_in_its_own_code_reports_once_another_gave_up(ended, capfd, tmp_path):
    folder, other = tmp_path / "reports", Ended()
    Waiting(0.1, 1, 2, folder, end=other)
    stall(Waiting(0.1, 0, 2, folder, end=ended), ended)
    assert other.wait(60)
    assert (ended.code, other.code) == (4, 4)
    told = capfd.readouterr().err
    assert told.count("stalled") == 1
    assert "stalled: rank 1 is silent in its own code at test_waiting.py:" in told
    assert "rank 0 is waiting in run.step at test_waiting.py:" in told
    assert "Thread 0x" in (folder / "autopsy.txt").read_text()


def test_time_outside_of_calls_and_apart_does_not_count(ended):
    waiting = Waiting(0.1, 0, 2, None, end=ended)
    assert not ended.wait(1)
    met = []
    with waiting.apart(lambda: met.append(ended.wait(1))):
        assert not met
    assert met == [False]
    waiting.close()


def test_who_fails_apart_meets_nobody(ended):
    waiting = Waiting(1, 0, 1, None, end=ended)
    with pytest.raises(InputError, match=r"run\.sum stands inside"):  # noqa: SIM117
        with waiting.apart(lambda: pytest.fail("the others wait")), waiting.call("run.sum"):
            pass
    with waiting.call("run.sum"):  # allowed again
        pass


@pytest.fixture
def other_ended(tmp_path, monkeypatch):
    """A rank that looks often, and the file by which another one tells that it is at its end."""
    monkeypatch.setattr(module, "_LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(module, "_ENDED_S", 1.0)
    return tmp_path / "reports.ended"


def test_the_wait_for_a_rank_that_ended_begins_when_it_did(ended, other_ended, capfd):
    waiting = Waiting(60, 1, 2, other_ended.with_suffix(""), end=ended)
    with waiting.call("run.step"):
        assert not ended.wait(1.5)  # longer than who waits for a rank that ended may wait
        other_ended.touch()
        assert not ended.wait(0.5)
        assert ended.wait(60)
    assert "rank 1 is waiting in run.step" in capfd.readouterr().err
    assert not other_ended.exists()


def test_who_works_or_is_met_does_not_wait_for_a_rank_that_ended(ended, other_ended):
    waiting = Waiting(60, 0, 2, other_ended.with_suffix(""), end=ended)
    other_ended.touch()
    with waiting.call("run.step"):
        place = waiting._place
        with waiting.working():
            assert not ended.wait(2)
            # Time that is lost to a suspension is counted by place: this is the same one.
            assert waiting._place is place
    with waiting.patient("run.checkpoint"):
        assert not ended.wait(2)
    waiting.close()


def test_the_word_of_an_end_is_taken_back(ended, other_ended):
    waiting = Waiting(60, 0, 2, other_ended.with_suffix(""), end=ended)

    def fail():
        with waiting.at_end():
            assert other_ended.exists()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not other_ended.exists()
    waiting.close()


STEP, SUM = "waits in run.step at train.py:7 after 3 steps", "waits in run.sum at train.py:9 after 4 steps"
OWN = "its own code at train.py:5 after 3 steps"


@pytest.mark.parametrize(
    ("places", "told"),
    [
        (
            [STEP, OWN, STEP],
            "rank 1 is silent in its own code at train.py:5 after 3 steps; "
            "ranks 0, 2 are waiting in run.step at train.py:7 after 3 steps",
        ),
        (
            [STEP, None, SUM],
            "rank 1 is silent: no report, stopped or gone; rank 0 is waiting in run.step at train.py:7 "
            "after 3 steps; rank 2 is waiting in run.sum at train.py:9 after 4 steps",
        ),
        (
            [STEP, SUM, SUM],
            "the calls of the ranks do not match: rank 0 is waiting in run.step at train.py:7 after 3 steps; "
            "ranks 1, 2 are waiting in run.sum at train.py:9 after 4 steps",
        ),
        (
            [SUM, SUM],
            "no rank is silent: ranks 0, 1 are waiting in run.sum at train.py:9 after 4 steps, so the engine "
            "or the network stands still",
        ),
    ],
)
def test_the_verdict(places, told):
    reports = {
        rank: f"rank {rank}: {place}, for {300 + rank} s\nThread 0x1\n"
        for rank, place in enumerate(places)
        if place
    }
    assert verdict_on(reports, len(places)) == told

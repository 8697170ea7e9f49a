"""What becomes of a job whose ranks come and go, by what its agents told and how horovodrun ended."""

import sys
import time

import pytest

from hvdtrain.errors import ExitCode
from hvdtrain.launch import elastic_job
from hvdtrain.launch.elastic_job import Listeners, supervise_elastic
from hvdtrain.launch.frames import encode
from hvdtrain.launch.outcome import failure_text
from hvdtrain.process import Command


def end(rank, code, *tail, asked=False):
    told = {"code": code, "pid": 1, "host": "n1", "time": time.time(), "asked": asked}
    return rank, {"end": {**told, **({"tail": tail, "last_words": tail} if code else {})}}


@pytest.fixture
def supervise(tmp_path):
    """Supervises a horovodrun that says what it is given; returns the outcome and what was heard."""

    def call(*said, code=0, then="", **terms):
        text = b""
        for item in said:
            if isinstance(item, str):
                text += f"{item}\n".encode()
            else:  # before each line of a rank horovodrun writes the rank
                text += b"".join(
                    b"[%d]<stderr>:%s\n" % (item[0], frame)
                    for block in encode(*item)
                    for frame in block.splitlines()
                )
        (tmp_path / "said").write_bytes(text)
        script = f"import os, sys, time\nos.write(2, open({str(tmp_path / 'said')!r}, 'rb').read())\n{then}\n"
        heard = []
        listeners = Listeners(heard.append, lambda *event: heard.append(event), heard.append)
        argv = (sys.executable, "-c", f"{script}sys.exit({code})")
        return supervise_elastic(Command(argv), listeners, **terms), heard

    return call


def test_one_rank_fails_and_the_other_is_done(supervise):
    said = ((0, {"start": {}}), (1, {"start": {}}), (0, {"event": {"event": "x"}}), end(1, -9), end(0, 0))
    outcome, heard = supervise(*said)
    assert outcome.exit_code == ExitCode.DONE
    assert (outcome.size, outcome.done, outcome.first_failure) == (2, {0}, None)
    assert heard == [
        (0, {"event": "x"}),
        "rank 1 on host n1 failed: killed by signal 9 (probably out of memory)",
    ]


def test_a_rank_whose_host_is_taken_out_did_not_fail(supervise):
    told = "  what():  n1[0] has been removed from elastic job"
    outcome, heard = supervise(end(1, -6, told), end(0, 0))
    assert outcome.exit_code == ExitCode.DONE
    assert heard == ["rank 1 on host n1 was taken out of the job"]


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ([end(0, 75), end(1, 75)], ExitCode.PREEMPTED),
        ([end(0, 75, asked=True), end(1, 75)], ExitCode.PREEMPTED),
        # The last failure is the one that it did not survive.
        ([end(1, -9), end(0, 2, "hvdtrain: error: no")], ExitCode.USAGE),
        ([end(1, 2), end(0, -9)], 137),
        ([end(1, 1, "ValueError: bad"), end(0, 143, asked=True)], ExitCode.FAILED),
    ],
)
def test_the_exit_code_of_a_job_that_failed(supervise, ends, code):
    outcome, _ = supervise(*ends, code=1)
    assert outcome.exit_code == code


def test_horovodrun_itself_fails(supervise):
    outcome, _ = supervise("Traceback (most recent call last):", "RuntimeError: no such interface", code=1)
    assert outcome.exit_code == ExitCode.FAILED
    assert "RuntimeError: no such interface" in failure_text(outcome)


def test_too_few_ranks_are_left(supervise):
    _, heard = supervise(end(1, -9), "ERROR:root:failed to activate new hosts -> stop running", code=1)
    assert heard[1] == "fewer ranks are left than --min-ranks asks for, and no host came in time"


def test_lines_of_ranks_are_handed_on_and_prefixes_are_not(supervise):
    outcome, heard = supervise((1, {"stdout": "a [2]<stdout>:b"}), "[1]<stderr>:", code=3)
    assert [(line.rank, line.stream, line.text) for line in heard] == [(1, "stdout", "a [2]<stdout>:b")]
    assert outcome.launcher_lines == ()


def test_its_time_is_over(supervise):
    outcome, _ = supervise(then="time.sleep(100)", timeout_s=0.5)
    assert outcome.exit_code == ExitCode.STALLED
    assert failure_text(outcome) == "the job did not end within its time limit of 0.5 s"


def test_a_signal_ends_it(supervise):
    """No agent runs here, so horovodrun itself is asked."""
    parent = "os.kill(os.getppid(), 15); time.sleep(100)"
    outcome, _ = supervise(then=parent)
    assert outcome.exit_code == 143
    assert failure_text(outcome) == "the job was ended by SIGTERM"


@pytest.mark.parametrize(("signals", "code"), [((10, 12, 15), 0), ((10, 15, 15), 143), ((15, 10), 0)])
def test_the_second_request_to_end_kills_and_no_announcement_does(supervise, monkeypatch, signals, code):
    """A horovodrun that takes its time to end."""
    monkeypatch.setattr(elastic_job, "_KILL_GRACE_S", 0.1)
    slow = f"""
import signal
signal.signal(15, signal.SIG_IGN)
for number in {signals}:
    os.kill(os.getppid(), number)
    time.sleep(0.2)
time.sleep(1.5)
"""
    assert supervise(then=slow)[0].exit_code == code

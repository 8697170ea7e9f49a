"""The life of a job, with plain commands and scripted agents in the launcher's place."""

import os
import signal
import sys
from pathlib import Path

import pytest

from hvdtrain.launch.paragraphs import worth_telling
from hvdtrain.launch.supervise import JobOutcome, Line, RankEnd, Terms, failure_text, supervise, tagged
from hvdtrain.process import Command

PROLOGUE = """
import json, os, sys, time
from hvdtrain.launch.frames import encode
def say(rank, content):
    for block in encode(rank, content): os.write(2, block)
def end(rank, code, at=0.0, asked=False, tail=()):
    told = {"code": code, "pid": 1, "host": f"h{rank}", "time": at, "asked": asked, "tail": list(tail)}
    say(rank, {"end": told})
"""


@pytest.fixture
def job():
    """Supervises a script that plays launcher and agents; returns (outcome, lines, events)."""

    def run(script, size=2, **options):
        lines, events = [], []
        outcome = supervise(
            Command((sys.executable, "-c", PROLOGUE + script)),
            size=size,
            on_line=lines.append,
            on_event=lambda rank, event: events.append((rank, event)),
            **options,
        )
        return outcome, lines, events

    return run


def test_success(job):
    outcome, lines, events = job(
        "say(1, {'stdout': 'a'}); say(0, {'stderr': 'b'}); say(0, {'event': {'step': 1}})\n"
        "end(0, 0); end(1, 0)"
    )
    assert outcome == JobOutcome(0, 2, None, frozenset({0, 1}), 0, (), 0)
    assert lines == [Line(1, "stdout", "a"), Line(0, "stderr", "b")]
    assert events == [(0, {"step": 1})]


def test_success_of_the_launcher_alone_is_none(job):
    outcome, _, _ = job("end(1, 0)")
    assert outcome.exit_code == 1
    assert failure_text(outcome) == "the launcher ended with code 0 before rank 0 said it was done"


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [(1, 1), (7, 1), (127, 1), (2, 2), (3, 1), (4, 4), (75, 75), (-9, 137), (-11, 139), (-15, 143)],
)
def test_exit_codes(job, code, exit_code):
    outcome, _, _ = job(f"end(0, {code}); sys.exit(1)")
    assert outcome.exit_code == exit_code
    assert outcome.first_failure.code == code


def test_first_failure_by_arrival(job):
    outcome, _, _ = job("end(2, 1, at=100.0); time.sleep(0.8); end(0, 7, at=50.0)", size=3)
    assert outcome.first_failure.rank == 2


def test_clocks_order_what_arrives_together(job):
    outcome, _, _ = job("end(0, 7, at=100.2); end(2, 1, at=100.1)", size=3)
    assert outcome.first_failure.rank == 2


def test_ranks_that_the_launcher_ended_are_no_cause(job):
    outcome, _, _ = job("end(0, 0); end(1, -15, asked=True); print('rank 0 did not finalize'); sys.exit(1)")
    assert outcome.first_failure is None
    assert outcome.exit_code == 1
    assert failure_text(outcome).splitlines() == [
        "the launcher ended with code 1 before rank 1 said it was done",
        "rank 0 did not finalize",
    ]


def test_preempted_ranks_win_over_those_that_were_ended_with_them(job):
    outcome, _, _ = job("end(1, -9, asked=True); end(0, 75, asked=True); sys.exit(1)")
    assert outcome.exit_code == 75
    assert failure_text(outcome) == "the job was preempted after a checkpoint; run it again to go on"


def test_launcher_that_does_not_end_after_a_failure_is_killed(job):
    script = "import signal; signal.signal(15, signal.SIG_IGN); end(1, 7); time.sleep(300)"
    outcome, _, _ = job(script)
    assert outcome.launcher_code == -signal.SIGKILL
    assert outcome.first_failure.rank == 1


def test_launcher_killed_by_a_signal(job):
    outcome, _, _ = job("os.kill(os.getpid(), 9)")
    assert outcome.exit_code == 137
    assert failure_text(outcome) == "the launcher was killed by signal 9 before rank 0, 1 said it was done"


def test_signals_are_handed_on_in_the_launchers_words(job):
    script = (
        "import signal\ngot = []\n"
        "for n in (23, 10): signal.signal(n, lambda n, _: got.append(n))\n"
        "say(0, {'event': {'ready': 1}})\n"
        "while 23 not in got: time.sleep(0.02)\n"
        "print(got); end(0, 75, asked=True); sys.exit(1)"
    )
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}

    def on_event(rank, event):
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)

    outcome = supervise(
        Command((sys.executable, "-c", PROLOGUE + script)),
        size=1,
        on_line=print,
        on_event=on_event,
        terms=Terms(signal.SIGURG),
    )
    assert outcome.launcher_lines == ("[10, 23]",)
    assert (outcome.exit_code, outcome.interrupted) == (75, signal.SIGTERM)
    assert {number: signal.getsignal(number) for number in before} == before


def test_second_interrupt_kills():
    script = (
        "import signal\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\n"
        "say(0, {'stdout': 'ready'}); time.sleep(300)"
    )

    def on_line(line):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    outcome = supervise(
        Command((sys.executable, "-c", PROLOGUE + script)), size=1, on_line=on_line, on_event=print
    )
    assert outcome.exit_code == 130
    assert failure_text(outcome) == "the job was ended by SIGINT"


def test_callback_that_raises_ends_the_job():
    pids = []

    def on_line(line):
        pids.append(int(line.text))
        raise BrokenPipeError

    script = "say(0, {'stdout': str(os.getpid())}); time.sleep(300)"
    with pytest.raises(BrokenPipeError):
        supervise(Command((sys.executable, "-c", PROLOGUE + script)), size=1, on_line=on_line, on_event=print)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_launcher_that_does_not_exist():
    with pytest.raises(FileNotFoundError):
        supervise(Command(("/no/such/mpirun",)), size=1, on_line=print, on_event=print)


START = """
def start(rank, size=2, device='', host='h'):
    say(rank, {'start': {'host': host, 'size': size, 'device': device}})
"""
BUS = "0000:01:00.0"


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (
            "start(0, device='GPU-a'); start(1, device='GPU-a', host='i')",
            "ranks 0 and 1 share GPU GPU-a on host h and i;",
        ),
        (f"start(0, device='{BUS}'); start(1, device='{BUS}')", f"ranks 0 and 1 share GPU h {BUS} "),
        ("start(0); start(0, host='i')", "two processes take themselves for rank 0, on hosts h and i;"),
        ("start(0, size=1)", "2 ranks were asked for, but on host h the launcher started rank 0 of 1;"),
        ("say(1, {'refusal': 'no GPU'})", "no GPU"),
    ],
    ids=["gpu", "gpu-without-uuid", "rank-twice", "singleton", "refusal"],
)
def test_ranks_that_cannot_be_end_the_job(job, script, text):
    outcome, _, _ = job(START + script + "\ntime.sleep(300)")
    assert outcome.exit_code == 2
    assert failure_text(outcome).startswith(text)


def test_two_hosts_may_have_gpus_at_one_address(job):
    starts = f"start(0, device='{BUS}'); start(1, device='{BUS}', host='i'); "
    outcome, _, _ = job(START + starts + "end(0, 0); end(1, 0)")
    assert outcome.exit_code == 0


def test_time_limit_asks_softly(job):
    script = (
        "import signal\ndef stop(n, _):\n end(0, 0, asked=True)\n end(1, -15, asked=True)\n sys.exit(1)\n"
        "signal.signal(23, stop)\nwhile True: time.sleep(0.05)"
    )
    outcome, _, _ = job(script, terms=Terms(signal.SIGURG, timeout_s=1.0))
    assert outcome.exit_code == 4
    assert failure_text(outcome) == "the job did not end within its time limit of 1 s"


def test_host_that_falls_silent(job, monkeypatch):
    monkeypatch.setattr("hvdtrain.launch.roster.SILENCE_S", 3.0)
    script = "start(0); start(1, host='i')\nwhile True: say(0, {'beat': 1}); time.sleep(0.2)"
    outcome, lines, _ = job(START + script, terms=Terms(hears_beats=True))
    assert outcome.exit_code == 1
    assert failure_text(outcome).startswith("host i has not been heard of for ")
    assert lines == []


TRACEBACK = ("Traceback (most recent call last):", '  File "x.py", line 1, in <module>', "RuntimeError: no")
CHAINED = (
    "Traceback (most recent call last):",
    "KeyError: 'a'",
    "",
    "During handling of the above exception, another exception occurred:",
    "",
    *TRACEBACK,
)


def failed(code, tail=(), rank=2):
    return JobOutcome(1, 4, RankEnd(rank, "h1", code, 0.0, False, tuple(tail)))


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (failed(7), ["rank 2 on host h1 failed: exit code 7"]),
        (failed(-9), ["rank 2 on host h1 failed: killed by signal 9 (probably out of memory)"]),
        (failed(4), ["rank 2 on host h1 failed: exit code 4 (stalled)"]),
        (failed(1, ["W: old", *TRACEBACK]), ["rank 2 on host h1 failed: exit code 1", *TRACEBACK]),
        (
            failed(1, [*TRACEBACK, "W: went on", *CHAINED, "W: shutdown"]),
            ["rank 2 on host h1 failed: exit code 1", *CHAINED, "W: shutdown"],
        ),
        (
            failed(3, map(str, range(50))),
            ["rank 2 on host h1 failed: exit code 3", *map(str, range(30, 50))],
        ),
    ],
)
def test_failure_text(outcome, text):
    assert failure_text(outcome, Path("/runs/a/logs")).splitlines() == [*text, "log: /runs/a/logs/rank-2.log"]
    assert failure_text(outcome).splitlines() == text


def test_tags():
    assert tagged(Line(3, "stdout", "x"), size=4) == "[3] x"
    assert tagged(Line(0, "stdout", "x"), size=1) == "x"


RULE = "-" * 74
NON_ZERO = [
    RULE,
    "prterun detected that one or more processes exited with non-zero status,",
    "thus causing the job to be terminated. The first process to do so was:",
    "",
    "   Process name: [prterun-vm-1@1,1]",
    "   Exit code:    7",
    RULE,
]


def test_paragraphs_that_say_no_more_than_the_agents():
    assert worth_telling(NON_ZERO) == ()
    v4 = "mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed)."
    assert worth_telling([RULE, v4, RULE]) == ()
    unknown = ["ssh: connect to host b port 22: No route to host", RULE, "ORTE was unable to start.", RULE]
    assert worth_telling([*unknown, *NON_ZERO]) == (unknown[0], unknown[2])

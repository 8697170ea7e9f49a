"""The life of a job, with plain commands and scripted agents in the launcher's place."""

import os
import signal
import sys

import pytest

from hvdtrain.launch.supervise import JobOutcome, Line, Terms, failure_text, supervise
from hvdtrain.process import Command

PROLOGUE = """
import json, os, sys, time
from hvdtrain.launch.frames import encode
def say(rank, content):
    for block in encode(rank, content): os.write(2, block)
def end(rank, code, at=0.0, asked=False, words=()):
    told = {"code": code, "pid": 1, "host": f"h{rank}", "time": at, "asked": asked, "last_words": words}
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
    assert failure_text(outcome).splitlines() == [
        "the launcher ended with code 0 before rank 0 said it was done",
        "rank 1 had ended with code 0 before that, while others were at work",
    ]


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        *((1, 1), (7, 1), (126, 1), (127, 2), (2, 2), (3, 3), (4, 4), (75, 75), (128, 1), (255, 1)),
        *((-9, 137), (-11, 139), (-15, 143), (137, 137), (143, 143)),
    ],
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
        "rank 0 had ended with code 0 before that, while others were at work",
        "rank 0 did not finalize",
    ]


def test_all_that_failed_are_told(job):
    script = "end(3, -9, at=9.0); end(2, 1, at=5.0, words=['no']); end(1, 7, at=8.0); end(0, -15, asked=True)"
    outcome, lines, _ = job(script, size=4)
    assert outcome.first_failure.rank == 2
    assert [(end.rank, end.code) for end in outcome.other_failures] == [(1, 7), (3, -9)]
    assert lines == []  # its last words are the verdict's


@pytest.mark.parametrize(("at", "told"), [(2.0, True), (0.5, False)])
def test_a_rank_that_had_left_is_told(job, at, told):
    """Another fails because it is gone; one that ended later has nothing to do with it."""
    outcome, _, _ = job(f"end(1, 0, at=1.0); end(0, 1, at={at}); sys.exit(1)")
    assert outcome.first_failure.rank == 0
    line = "rank 1 had ended with code 0 before that, while others were at work"
    assert (line in failure_text(outcome).splitlines()) == told


DIED = "say({rank}, {{'died': {{'code': {code}, 'host': 'h{rank}', 'time_s': {at}}}}});"


@pytest.mark.parametrize(
    ("script", "first", "others"),
    [
        (DIED.format(rank=1, code=-9, at=1.0) + "end(0, 1, at=1.3)", (1, -9), [0]),  # rank 1 tells no more
        (DIED.format(rank=1, code=-9, at=1.0), (1, -9), []),
        (DIED.format(rank=1, code=-9, at=1.0) + "end(0, 1, at=1.3); end(1, -9, at=1.0)", (1, -9), [0]),
        ("end(0, 1, at=1.0); " + DIED.format(rank=1, code=-9, at=1.1), (0, 1), []),  # killed with the job
    ],
)
def test_rank_that_dies_is_named_though_its_agent_is_ended_with_it(job, script, first, others):
    outcome, _, _ = job(script)
    assert (outcome.first_failure.rank, outcome.first_failure.code) == first
    assert [end.rank for end in outcome.other_failures] == others


def test_last_words_that_no_verdict_tells_are_shown(job):
    """Here the reason is one of the supervisor's own, and what rank 1 said before is no part of it."""
    refusal = "end(1, 1, words=['boom']); say(0, {'refusal': 'no GPU'}); end(0, 1, words=['bang'])"
    outcome, lines, _ = job(refusal)
    assert (outcome.exit_code, failure_text(outcome)) == (2, "no GPU")
    assert sorted(lines) == [Line(0, "stderr", "bang"), Line(1, "stderr", "boom")]


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


def test_ranks_that_are_not_where_they_were_planned_end_the_job():
    cmd = Command(
        (sys.executable, "-c", PROLOGUE + START + "start(0); start(1); time.sleep(300)"),
        {"HVDTRAIN_RANKS_PER_HOST": "1(x2)"},
    )
    outcome = supervise(cmd, size=2, on_line=print, on_event=print)
    assert outcome.exit_code == 2
    assert failure_text(outcome).startswith("ranks 0 and 1 belong on two hosts, but both run on h;")


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


def test_launcher_that_waits_is_heard(capfd):
    """As srun with "step creation temporarily disabled, retrying", which else hangs without a reason."""
    script = (
        "print('retrying', flush=True); time.sleep(2.5)\n"
        "start(0, size=1); say(0, {'stdout': 'on'}); print('a warning', flush=True); end(0, 0)"
    )
    told = []
    outcome = supervise(
        Command((sys.executable, "-c", PROLOGUE + START + script)),
        size=1,
        on_line=lambda _: told.append(capfd.readouterr().err),
        on_event=print,
    )
    assert outcome.exit_code == 0
    assert (told, capfd.readouterr().err) == (["retrying\n"], "a warning\n")


def test_what_the_launcher_says_of_a_failure_is_left_to_the_verdict(job, capfd):
    outcome, _, _ = job("print('no slots'); sys.exit(1)")
    assert capfd.readouterr().err == ""
    assert outcome.launcher_lines == ("no slots",)


@pytest.mark.parametrize("scancel", [None, "echo no permission >&2; exit 1", "exit 3"])
def test_step_that_scancel_cannot_reach_gets_sigterm(job, capfd, tmp_path, monkeypatch, scancel):
    if scancel:
        (tmp_path / "scancel").write_text(f"#!/bin/sh\n{scancel}\n")
        (tmp_path / "scancel").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    script = (
        "import signal\ndef stop(n, _):\n end(0, -15, asked=True)\n sys.exit(1)\n"
        "signal.signal(15, stop)\n"
        "say(0, {'start': {'host': 'h', 'size': 1, 'device': '', 'step': '7.0'}})\n"
        "while True: time.sleep(0.05)"
    )
    outcome, _, _ = job(script, size=1, terms=Terms(signal.SIGUSR2, timeout_s=1.0))
    assert (outcome.exit_code, 0 in outcome.done, outcome.launcher_code) == (4, False, 1)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("hvdtrain: scancel: ")
    assert line.endswith("; srun is asked, which kills the ranks")


TRAPPED = """
import signal
def stop(n, _):
    end(0, CODE, asked=True); end(1, 0, asked=True); sys.exit(0)
signal.signal(15, stop)
say(0, {'stdout': 'ready'})
while True: time.sleep(0.05)
"""


@pytest.mark.parametrize(("code", "exit_code"), [(0, 4), (75, 75)])
def test_time_limit_is_no_success_though_the_ranks_say_so(job, code, exit_code):
    outcome, _, _ = job(TRAPPED.replace("CODE", str(code)), terms=Terms(timeout_s=1.0))
    assert outcome.exit_code == exit_code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_job_is_no_success_though_the_ranks_say_so(number):
    outcome = supervise(
        Command((sys.executable, "-c", PROLOGUE + TRAPPED.replace("CODE", "0"))),
        size=2,
        on_line=lambda _: os.kill(os.getpid(), number),
        on_event=print,
    )
    assert outcome.exit_code == 128 + number
    assert failure_text(outcome) == f"the job was ended by {number.name}"


def test_rank_that_fails_after_the_time_limit_is_no_cause(job):
    """Its peers were asked to end a moment before, and so its connection broke."""
    outcome, _, _ = job(TRAPPED.replace("CODE, asked=True", "1"), terms=Terms(timeout_s=1.0))
    assert (outcome.exit_code, outcome.first_failure) == (4, None)


def test_launcher_that_lingers_past_the_time_limit_after_a_success(job):
    outcome, _, _ = job("end(0, 0); end(1, 0); time.sleep(2)", terms=Terms(timeout_s=1.0))
    assert (outcome.exit_code, outcome.reason) == (0, "")


def test_host_that_falls_silent(job, monkeypatch):
    monkeypatch.setattr("hvdtrain.launch.roster.SILENCE_S", 3.0)
    script = "start(0); start(1, host='i')\nwhile True: say(0, {'beat': 1}); time.sleep(0.2)"
    outcome, lines, _ = job(START + script, terms=Terms(hears_beats=True))
    assert outcome.exit_code == 1
    assert failure_text(outcome).startswith("host i has not been heard of for ")
    assert lines == []

"""What is told of a job that ended."""

from dataclasses import replace
from pathlib import Path

import pytest

from hvdtrain.launch.outcome import JobOutcome, Line, RankEnd, failure_text, tagged
from hvdtrain.launch.paragraphs import worth_telling

TRACEBACK = ("Traceback (most recent call last):", '  File "x.py", line 1, in <module>', "RuntimeError: no")
CHAINED = (
    "Traceback (most recent call last):",
    "KeyError: 'a'",
    "",
    "During handling of the above exception, another exception occurred:",
    "",
    *TRACEBACK,
)

SAID = "what it said last on stderr:"


def failed(code, tail=(), last_words=()):
    return JobOutcome(1, 4, RankEnd(2, "h1", code, 0.0, False, tuple(tail), tuple(last_words)))


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (failed(7), ["rank 2 on host h1 failed: exit code 7"]),
        (failed(-9), ["rank 2 on host h1 failed: killed by signal 9 (probably out of memory)"]),
        (
            failed(137),
            ["rank 2 on host h1 failed: exit code 137, killed by signal 9 (probably out of memory)"],
        ),
        (failed(127), ["rank 2 on host h1 failed: exit code 127 (the program was not found)"]),
        (failed(4), ["rank 2 on host h1 failed: exit code 4 (stalled)"]),
        (failed(1, ["W: old", *TRACEBACK], TRACEBACK), ["rank 2 on host h1 failed: exit code 1", *TRACEBACK]),
        (
            failed(1, [*TRACEBACK, "W: went on", *CHAINED, "W: shutdown"], CHAINED),
            ["rank 2 on host h1 failed: exit code 1", *CHAINED],
        ),
        (
            failed(127, ["hvdtrain: cannot start 'x': No such file or directory"]),
            [
                "rank 2 on host h1 failed: exit code 127 (the program was not found)",
                "hvdtrain: cannot start 'x': No such file or directory",
            ],
        ),
        # what the rank survived is no reason of its end
        (failed(7, ["a", *TRACEBACK]), ["rank 2 on host h1 failed: exit code 7"]),
        (
            failed(7, [*CHAINED, "no space left"]),
            ["rank 2 on host h1 failed: exit code 7", SAID, "no space left"],
        ),
        (failed(7, TRACEBACK[:2]), ["rank 2 on host h1 failed: exit code 7"]),
        (
            failed(3, map(str, range(50))),
            ["rank 2 on host h1 failed: exit code 3", SAID, *map(str, range(30, 50))],
        ),
    ],
)
def test_failure_text(outcome, text):
    assert failure_text(outcome, Path("/runs/a/logs")).splitlines() == [*text, "log: /runs/a/logs/rank-2.log"]
    assert failure_text(outcome).splitlines() == text


def test_other_failures_follow_the_first_one():
    others = (
        RankEnd(0, "h1", -9, 0.0),
        RankEnd(3, "h2", 1, 0.0, last_words=(*CHAINED, "more of it")),
    )
    outcome = replace(failed(1, last_words=TRACEBACK), other_failures=others)
    assert failure_text(outcome).splitlines()[4:] == [
        "2 other ranks failed too:",
        "  rank 0 on host h1: killed by signal 9 (probably out of memory)",
        "  rank 3 on host h2: exit code 1: RuntimeError: no",
    ]
    one = failure_text(replace(outcome, other_failures=others[:1]))
    assert "1 other rank failed too:\n" in one
    many = tuple(RankEnd(rank, "h1", 1, 0.0) for rank in range(3, 103))
    text = failure_text(replace(outcome, other_failures=many)).splitlines()
    assert "100 other ranks failed too:" in text
    assert text[-1] == "  and 92 more"


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


def test_a_preemption_is_no_failure_of_a_rank():
    """Also where ranks were asked by somebody else than the supervisor, by Slurm for example."""
    ends = [RankEnd(rank, "h1", 75, 0.0, last_words=("hvdtrain: error: preempted",)) for rank in (1, 0)]
    outcome = JobOutcome(75, 2, ends[0], other_failures=(ends[1],))
    assert failure_text(outcome).splitlines() == [
        "the job was preempted after a checkpoint; run it again to go on",
        "hvdtrain: error: preempted",
    ]
    outcome = replace(outcome, other_failures=(replace(ends[1], code=1, last_words=TRACEBACK),))
    assert "rank 0 on host h1: exit code 1: RuntimeError: no" in failure_text(outcome)

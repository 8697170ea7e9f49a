"""Whether a job that failed starts again, when, and on what."""

import signal

import pytest

from hvdtrain.errors import ExitCode
from hvdtrain.launch.outcome import JobOutcome, RankEnd
from hvdtrain.launch.restart import (
    Decision,
    Life,
    Trail,
    decide,
    offered,
    pause_s,
    ranks_left,
    rest_of,
)
from hvdtrain.topology.hosts import Cluster, Host

FAILED = JobOutcome(1, 2, RankEnd(1, "h2", 1, 0.0))
AGAIN = Decision(True)


def test_pauses_grow_up_to_a_minute():
    assert [pause_s(restart) for restart in (1, 2, 3, 6, 7, 8, 10**6)] == [1, 2, 4, 32, 60, 60, 60]


@pytest.mark.parametrize(
    "outcome",
    [
        FAILED,
        JobOutcome(137, 2, RankEnd(1, "h2", -signal.SIGKILL, 0.0)),
        JobOutcome(ExitCode.STALLED, 2, RankEnd(0, "h1", 4, 0.0)),  # by the limits of the training
        JobOutcome(1, 2, reason="host h2 has not been heard of for 11 s"),
        JobOutcome(1, 2, launcher_code=213),
    ],
)
def test_failures_start_again(outcome):
    assert decide(Life(outcome), None, 0, 1) == AGAIN
    assert decide(Life(outcome), None, 0, 0) == Decision(False)


@pytest.mark.parametrize(
    "outcome",
    [
        JobOutcome(0, 2),
        JobOutcome(ExitCode.USAGE, 2),
        JobOutcome(ExitCode.GATE, 2),
        JobOutcome(ExitCode.PREEMPTED, 2),
        JobOutcome(128 + signal.SIGTERM, 2, interrupted=signal.SIGTERM),
        JobOutcome(ExitCode.STALLED, 2, reason="the job did not end within its time limit of 60 s"),
    ],
)
def test_what_another_life_would_not_change(outcome):
    assert decide(Life(outcome), None, 0, 9) == Decision(False)


def test_all_are_used():
    assert decide(Life(FAILED), None, 3, 3) == Decision(
        False, "it failed after 3 restarts, all that --max-restarts allows"
    )


H1, H2 = Host("h1", 1), Host("h2", 1)
BEFORE = Life(FAILED, (H1, H2), checkpoint=10, step=15)


@pytest.mark.parametrize(
    ("life", "why"),
    [
        (Life(FAILED, (H1, H2), 10, 15), "it failed at step 15 twice, with no checkpoint made in between"),
        (Life(FAILED, (H1, H2), 10, 16), ""),
        (Life(FAILED, (H1, H2), 10, 14), ""),
        # steps that were quicker than the telling
        (
            Life(FAILED, (H1, H2), 10, 18, slack=3),
            "it failed at step 18 twice, with no checkpoint made in between",
        ),
        (Life(FAILED, (H1, H2), 15, 15), ""),
        (Life(FAILED, (H1,), 10, 15), ""),  # without the host that may be the reason
        (Life(FAILED, (H1, H2), None, None), ""),  # nobody knows
    ],
)
def test_the_same_step_twice(life, why):
    assert decide(life, BEFORE, 1, 9) == Decision(not why, why)


def test_twice_before_the_first_step():
    life = Life(FAILED, (H1,), None, 0)
    assert decide(life, life, 1, 9).why.startswith("it failed before the first step twice")


def test_how_far_a_training_got():
    trail = Trail()
    assert trail.take({"event": "start", "global_batch": 64}) == ""
    trail.take({"event": "run", "path": "/runs/x"})
    # 90 steps in 9 s: a tenth of a second each, of which two may pass between two events
    trail.take({"event": "step", "step": 10, "steps": 100, "left_s": 9.0})
    assert (trail.run_dir, trail.step, trail.slack) == ("/runs/x", 10, 2)
    trail.take({"event": "epoch", "step": 20})
    trail.take({"event": "note", "text": "x"})
    assert trail.step == 20
    trail.begin()
    assert (trail.run_dir, trail.step, trail.slack) == ("/runs/x", None, 0)
    assert trail.take({"event": "start", "global_batch": 64}) == ""
    assert trail.take({"event": "start", "global_batch": 32}) == (
        "the global batch is 32 samples and was 64: the job names batch.per_rank, which stays"
    )


def test_hosts_that_do_not_answer_are_left_out():
    cluster = Cluster((Host("a", 2), Host("b", 2), Host("c", 2, devices=(0, 1))), "-H", ("a notice",))
    answers = {"a": {"gpus": 1}, "b": "refused", "c": {"gpus": 0}}
    rest = rest_of(cluster, answers, uses_gpus=False)
    assert rest.cluster == Cluster((Host("a", 2), Host("c", 2, devices=(0, 1))), "-H")
    assert rest.notes == ("host b does not answer: refused",)


def test_lost_gpus_are_lost_slots():
    cluster = Cluster((Host("a", 2), Host("b", 2)), "-H")
    rest = rest_of(cluster, {"a": {"gpus": 1}, "b": {"gpus": 0}}, uses_gpus=True)
    assert rest.cluster == Cluster((Host("a", 1),), "-H")
    assert rest.notes == ("host a shows 1 GPU of 2", "host b shows 0 GPUs of 2")
    assert rest_of(cluster, {"a": "gone", "b": "gone"}, uses_gpus=True).cluster is None


def test_slots_that_the_user_lets_a_job_take():
    cluster = Cluster((Host("a", 4, devices=(3, 2, 1, 0)), Host("b", 2)), "-H")
    assert offered(cluster, None) == cluster
    assert offered(cluster, 2).hosts == (Host("a", 2, devices=(3, 2)), Host("b", 2))


@pytest.mark.parametrize(
    ("slots", "wanted", "least", "ranks", "why"),
    [
        (4, 4, None, 4, ""),
        (6, 4, 2, 4, ""),  # a spare host stands in
        (3, 4, 2, 3, ""),
        (2, 4, 2, 2, ""),
        (1, 4, 2, 0, "1 rank of 4 can be started, fewer than --min-ranks 2"),
        (3, 4, None, 0, "3 ranks of 4 can be started; --min-ranks allows fewer"),
        (0, 4, None, 0, "0 ranks of 4 can be started; --min-ranks allows fewer"),
    ],
)
def test_ranks_of_the_next_life(slots, wanted, least, ranks, why):
    assert ranks_left(slots, wanted, least) == (ranks, why)

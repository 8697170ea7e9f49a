"""Waiting for jobs: what Slurm forgets, what it does not answer, logs that appear one by one.

Slurm's commands are shell scripts here, which answer each question from a numbered file.
"""

from pathlib import Path

import pytest

from hvdtrain.errors import LaunchError
from hvdtrain.launch import follow as following
from hvdtrain.launch.follow import Elements, Tail, follow, joint_code
from hvdtrain.launch.queue import JobState, NoAnswerError, find_jobs, log_of

ANSWER = """#!/bin/sh
# the next answer; the last one again and again
cd {folder}
name=$(basename "$0")
count=$(($(cat "$name.count" 2> /dev/null || echo 0) + 1))
[ -e "$name.$((count + 1))" ] && echo $count > "$name.count"
[ -e "$name.$count" ] || exit 1
. "./$name.$count"
"""
OUTAGE = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
INVALID = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Sets the answers of squeue, sacct and scontrol; returns the environment in which they are found."""
    monkeypatch.setattr(following, "_FIRST_PAUSE_S", 0.01)

    def answers(**told):
        for name in ("squeue", "sacct", "scontrol"):
            (tmp_path / name).write_text(ANSWER.format(folder=tmp_path))
            (tmp_path / name).chmod(0o755)
            for number, answer in enumerate(told.get(name, ()), 1):
                (tmp_path / f"{name}.{number}").write_text(answer)
        return {"PATH": f"{tmp_path}:/usr/bin:/bin"}

    return answers


def squeue(*jobs):
    return "printf '%s\\n' " + " ".join(
        f"'{job}\x1f{state}\x1f0:01\x1f1\x1fp\x1fn1\x1fx'" for job, state in jobs
    )


def sacct(*jobs):
    return "printf '%s\\n' " + " ".join(
        f"'{job}\x1f{state}\x1f0:01\x1f1\x1fp\x1f{code}\x1fx'" for job, state, code in jobs
    )


def test_an_element_that_failed_counts_after_slurm_forgot_it(slurm):
    env = slurm(
        squeue=(
            squeue(("12_0", "FAILED"), ("12_[1-2]", "PENDING")),
            squeue(("12_1", "RUNNING"), ("12_2", "RUNNING")),
            squeue(("12_1", "COMPLETED"), ("12_2", "COMPLETED")),
        ),
        scontrol=("echo JobId=13 ArrayJobId=12 ArrayTaskId=0 JobName=x; echo JobState=FAILED ExitCode=7:0",),
    )
    told = follow("12", env)
    assert {job.job: job.state for job in told} == {
        "12_0": "FAILED",
        "12_1": "COMPLETED",
        "12_2": "COMPLETED",
    }
    assert joint_code(told) == 7


def test_accounting_is_asked_for_what_nobody_saw(slurm):
    env = slurm(
        squeue=(squeue(("12_0", "RUNNING"), ("12_1", "RUNNING")), squeue(("12_1", "COMPLETED"))),
        sacct=(sacct(("12_0", "FAILED", "3:0"), ("12_1", "COMPLETED", "0:0")),),
    )
    assert joint_code(follow("12", env)) == 3


def test_an_end_that_nobody_knows_is_no_success(slurm):
    env = slurm(squeue=(squeue(("12_0", "RUNNING"), ("12_1", "RUNNING")), squeue(("12_1", "COMPLETED"))))
    told = follow("12", env)
    assert {job.job: job.state for job in told} == {"12_0": "UNKNOWN", "12_1": "COMPLETED"}
    assert joint_code(told) == 1


def test_an_outage_ends_no_waiting(slurm):
    env = slurm(squeue=(squeue(("12", "RUNNING")), *([OUTAGE] * 8), squeue(("12", "COMPLETED"))))
    states, troubles = [], []
    assert joint_code(follow("12", env, None, states.append, troubles.append)) == 0
    assert states == ["RUNNING", "COMPLETED"]
    assert len(troubles) == 1
    assert troubles[0].endswith("Unable to contact slurm controller (connect failure); still waiting")


@pytest.mark.parametrize("answer", [INVALID, "true"])
def test_a_job_that_nobody_knows_is_lost(slurm, answer):
    env = slurm(squeue=(answer,))
    assert follow("12", env) == [JobState("12", "UNKNOWN")]
    assert joint_code(find_jobs("12", env)) == 1


def test_an_outage_is_no_state(slurm):
    with pytest.raises(NoAnswerError, match=r"squeue failed: .*connect failure"):
        find_jobs("12", slurm(squeue=(OUTAGE,)))
    assert issubclass(NoAnswerError, LaunchError)


def test_elements_replace_the_ids_that_they_had_together():
    elements = Elements("12")
    elements.take([JobState("12", "UNKNOWN")])  # just submitted
    elements.take([JobState("12_[0-1]", "PENDING")])
    elements.take([JobState("12_0", "COMPLETED", code=0), JobState("12_[1]", "PENDING")])
    elements.take([])  # an outage
    elements.take([JobState("12_0", "COMPLETED", code=0), JobState("12_1", "COMPLETED", code=0)])
    elements.take([JobState("12", "UNKNOWN")])  # forgotten
    assert [(one.job, one.code) for one in elements.close([])] == [("12_0", 0), ("12_1", 0)]


def test_accounting_that_is_behind_changes_no_code():
    elements = Elements("12")
    elements.take([JobState("12", "COMPLETED", code=0)])
    assert joint_code(elements.close([JobState("12", "PREEMPTED", code=1)])) == 0
    assert joint_code([JobState("12", "COMPLETED")]) == 0
    assert joint_code([JobState("12", "FAILED")]) == 1


def element_log(element, path):
    return (
        f"printf '%s\\n' 'JobId=2{element} ArrayJobId=12 ArrayTaskId={element} JobName=x' "
        f"'   JobState=RUNNING ExitCode=0:0' '   StdOut={path}'\n"
    )


def test_logs_of_elements_are_found_as_they_start(slurm, tmp_path):
    first, second = tmp_path / "12_0.out", tmp_path / "12_1.out"
    waiting = element_log(1, tmp_path / "12_4294967294.out")
    env = slurm(
        scontrol=(element_log(0, first) + waiting, element_log(0, first) + element_log(1, second), "exit 1")
    )
    shown = []
    tail = Tail("12", env, shown.append)
    first.write_text("a\n")
    tail.pass_on()
    second.write_text("b\n")
    tail.pass_on()
    assert b"".join(shown) == f"a\n==> {second} <==\nb\n".encode()
    first.write_text("a\nc\n")
    tail.pass_on()  # Slurm has forgotten the job
    assert b"".join(shown).endswith(f"==> {first} <==\nc\n".encode())


def test_elements_that_wait_have_no_log(slurm, tmp_path):
    env = slurm(scontrol=(element_log(1, Path(tmp_path, "12_4294967294.out")),))
    assert log_of("12", env) == []

"""What Slurm prints, read: squeue, sacct and scontrol, with states that nobody knows."""

import pytest

from hvdtrain.errors import InputError
from hvdtrain.launch.queue import (
    JobState,
    check_job,
    exit_code,
    parse_sacct,
    parse_scontrol,
    parse_squeue,
    parse_state,
)
from hvdtrain.launch.records import record_job, recorded_logs


def lines(*records):
    return "".join("\x1f".join(record) + "\n" for record in records)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("RUNNING", "RUNNING"),
        ("CANCELLED by 0", "CANCELLED"),
        ("CANCELLED+", "CANCELLED"),
        (" completed ", "COMPLETED"),
        ("OUT_OF_MEMORY", "OUT_OF_MEMORY"),
        ("DREAMING", "UNKNOWN"),
        ("", "UNKNOWN"),
    ],
)
def test_states(text, state):
    assert parse_state(text) == state


def test_squeue():
    text = lines(
        ("12", "RUNNING", "1:02", "2", "gpu", "n[1-2]", "a name | with\tall"),
        ("13_[4-7%2]", "PENDING", "0:00", "1", "gpu", "(Resources)", "two"),
    )
    text += "lines 14\n"
    assert parse_squeue(text) == [
        JobState("12", "RUNNING", "1:02", "2", "gpu", "n[1-2]", "a name | with\tall"),
        JobState("13_[4-7%2]", "PENDING", "0:00", "1", "gpu", "(Resources)", "two\nlines 14"),
    ]
    assert parse_squeue("slurm_load_jobs error: Invalid job id specified\n") == []


def test_sacct_without_steps():
    text = lines(
        ("12", "COMPLETED", "00:01:02", "2", "gpu", "0:0", "x"),
        ("12.batch", "FAILED", "00:01:02", "1", "", "7:0", "batch"),
        ("13_0", "OUT_OF_MEMORY", "00:00:02", "1", "gpu", "0:125", "y"),
        ("14", "CANCELLED by 1000", "00:00:00", "1", "gpu", "0:0", "z"),
    )
    told = [(job.job, job.state, job.code) for job in parse_sacct(text)]
    assert told == [("12", "COMPLETED", 0), ("13_0", "OUT_OF_MEMORY", 253), ("14", "CANCELLED", 1)]


# What Slurm 22.05.8 with slurmdbd printed, its control characters shown as "|" and "^" here.
LONG = "a-very-long-name-" * 12
REAL_SACCT = f"""1|TIMEOUT|00:01:25|1|lab|0:0|limit
2|COMPLETED|00:00:01|2|lab|0:0|ok
3|FAILED|00:00:00|1|lab|7:0|fails
4|FAILED|00:00:00|1|lab|0:9|killed
5|COMPLETED|00:00:00|1|lab|0:0|a step of it failed
6|COMPLETED|00:00:00|1|lab|0:0|{LONG}
7|COMPLETED|00:00:00|1|lab|0:0|two ^ and
lines
8_0|COMPLETED|00:00:00|1|lab|0:0|arr
8_1|COMPLETED|00:00:00|1|lab|0:0|arr
8_2|FAILED|00:00:00|1|lab|5:0|arr
13|CANCELLED by 0|00:00:06|1|lab|0:0|cancelrun
14|NODE_FAIL|00:00:26|1|lab|0:0|nodefail
16+0|COMPLETED|00:00:00|1|lab|0:0|het
16+1|COMPLETED|00:00:00|1|lab|0:0|het
15|COMPLETED|00:00:20|1|lab|0:0|requeued
"""
# Of a job that was requeued, `sacct --duplicates` shows the runs before.
REAL_DUPLICATES = """15|REQUEUED|00:00:07|1|lab|0:0|requeued
15|COMPLETED|00:00:20|1|lab|0:0|requeued
"""


def as_slurm_writes(text):
    return text.replace("|", "\x1f").replace("^", "\x1f")


def test_real_sacct():
    jobs = {one.job: one for one in parse_sacct(as_slurm_writes(REAL_SACCT))}
    assert {job: (one.state, one.code) for job, one in jobs.items()} == {
        "1": ("TIMEOUT", 1),
        "2": ("COMPLETED", 0),
        "3": ("FAILED", 7),
        "4": ("FAILED", 137),
        "5": ("COMPLETED", 0),
        "6": ("COMPLETED", 0),
        "7": ("COMPLETED", 0),
        "8_0": ("COMPLETED", 0),
        "8_1": ("COMPLETED", 0),
        "8_2": ("FAILED", 5),
        "13": ("CANCELLED", 1),
        "14": ("NODE_FAIL", 1),
        "16+0": ("COMPLETED", 0),
        "16+1": ("COMPLETED", 0),
        "15": ("COMPLETED", 0),
    }
    assert jobs["1"] == JobState("1", "TIMEOUT", "00:01:25", "1", "lab", "", "limit", 1)
    assert (jobs["6"].name, jobs["7"].name) == (LONG, "two \x1f and\nlines")


def test_run_before_a_requeue_has_not_ended():
    told = [(one.state, one.has_ended, one.code) for one in parse_sacct(as_slurm_writes(REAL_DUPLICATES))]
    assert told == [("REQUEUED", False, None), ("COMPLETED", True, 0)]


REAL_SQUEUE = """11|CANCELLED|0:06|1|lab|h2|cancelrun
10|CANCELLED|0:00|1|lab||held
4|FAILED|0:00|1|lab|(JobLaunchFailure)|killed
9_[4-7%2]|PENDING|0:00|1|lab|(JobHeldUser)|arrhold
1|RUNNING|0:34|1|lab|h1|limit
14+1|COMPLETED|0:00|1|lab|h2|het
"""


def test_real_squeue():
    told = [(one.job, one.state, one.detail) for one in parse_squeue(as_slurm_writes(REAL_SQUEUE))]
    assert told == [
        ("11", "CANCELLED", "h2"),
        ("10", "CANCELLED", ""),
        ("4", "FAILED", "(JobLaunchFailure)"),
        ("9_[4-7%2]", "PENDING", "(JobHeldUser)"),
        ("1", "RUNNING", "h1"),
        ("14+1", "COMPLETED", "h2"),
    ]


SCONTROL = """JobId=12 JobName=a name=b
   UserId=u(1) GroupId=g(1) MCS_label=N/A
   JobState=FAILED Reason=NonZeroExitCode Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=7:0
   RunTime=00:00:05 TimeLimit=01:00:00 TimeMin=N/A
   Partition=gpu AllocNode:Sid=head:1
   NumNodes=2 NumCPUs=2 NumTasks=2
   StdErr=/a b/out 12.log
   StdOut=/a b/out 12.log
   Power=

JobId=15 ArrayJobId=13 ArrayTaskId=2 JobName=y
   JobState=NEWSTATE Reason=None Dependency=(null)
   ExitCode=0:0
JobId=13 ArrayJobId=13 ArrayTaskId=3-7 JobName=y
   JobState=PENDING Reason=Priority Dependency=(null)
   ExitCode=0:0
"""


def test_scontrol():
    first, second, third = parse_scontrol(SCONTROL)
    assert first == JobState(
        "12", "FAILED", "00:00:05", "2", "gpu", "NonZeroExitCode", "a name=b", 7, "/a b/out 12.log"
    )
    assert (second.job, second.state, second.code) == ("13_2", "UNKNOWN", None)
    assert (third.job, third.state) == ("13_[3-7]", "PENDING")
    assert parse_scontrol("slurm_load_jobs error: Invalid job id specified") == []


@pytest.mark.parametrize(
    ("state", "text", "code"),
    [
        ("COMPLETED", "0:0", 0),
        ("FAILED", "75:0", 75),
        ("FAILED", "0:9", 137),
        ("TIMEOUT", "0:0", 1),
        ("TIMEOUT", "0:15", 143),
        ("RUNNING", "0:0", None),
        ("NODE_FAIL", "", 1),
    ],
)
def test_exit_codes(state, text, code):
    assert exit_code(state, text) == code


@pytest.mark.parametrize("text", ["12; rm", "", "-1", "12.0", "x", "12_[1-2]"])
def test_job_that_is_none(text):
    with pytest.raises(InputError, match="legal: 12, or 12_3"):
        check_job(text)


def test_logs_of_jobs_that_slurm_forgot(tmp_path):
    env = {"XDG_STATE_HOME": str(tmp_path)}
    (tmp_path / "o").mkdir()
    for name in ("12_0.out", "12_1.out", "13_0.out"):
        (tmp_path / "o" / name).touch()
    record_job("12", f"{tmp_path}/o/%A_%a.out", "n", env)
    record_job("14", f"{tmp_path}/100%%/%x-%j.out", "n", env)
    assert recorded_logs("12", env) == [f"{tmp_path}/o/12_0.out", f"{tmp_path}/o/12_1.out"]
    assert recorded_logs("12_1", env) == [f"{tmp_path}/o/12_1.out"]
    assert recorded_logs("14", env) == [f"{tmp_path}/100%/n-14.out"]
    assert recorded_logs("99", env) == []

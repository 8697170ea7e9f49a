"""``hvdtrain.start()`` in a user's loop: exact at 1, 2, 3 and 5 ranks, ended on all where one rank errs."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hvdtrain.launch.job import launch_job
from hvdtrain.launch.machine import local_plan
from hvdtrain.launch.supervise import failure_text

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 120
pytestmark = pytest.mark.mpi


def run(size, launcher, program, *args, **env):
    plan = local_plan(size, 5, os.environ)
    plan = replace(plan, program=(sys.executable, str(PROGRAMS / program), *args), env={**plan.env, **env})
    lines = []
    outcome = launch_job(plan, lines.append, lambda rank, event: None, launcher=launcher, timeout_s=LIMIT_S)
    told = failure_text(outcome).splitlines() if outcome.exit_code else []
    return outcome, [line.text for line in lines] + told


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize(("backend", "launcher"), [("horovod", "mpirun"), ("ddp", "local")])
def test_a_loop_on_many_ranks_trains_like_one_process(backend, launcher, size):
    """Loaders, accumulation, clipping, odd models, batch norm, evaluation, precision: see the programs."""
    outcome, lines = run(size, launcher, "script_training.py", backend)
    assert outcome.exit_code == 0, lines
    assert sorted(line for line in lines if line.endswith("ok")) == [
        f"rank {rank} of {size} ok" for rank in range(size)
    ]


def test_a_loop_alone():
    outcome, lines = run(1, "local", "script_training.py", "single")
    assert outcome.exit_code == 0, lines


# A mistake of the last of 3 ranks, the exit code, and words of the line or the traceback that tells it.
MISTAKES = {
    "loaders_of_other_lengths": (2, "different numbers of batches: 3 (rank 2), 5 (ranks 0, 1); let hvdtrain"),
    "streams_of_other_lengths": (2, "different numbers of batches: 3 (rank 2), 4 (ranks 0, 1); let hvdtrain"),
    "loader_ends_before_its_length": (2, "the loader of rank 2 ended after 3 batches, but its len() is 4"),
    "loader_goes_on_after_its_length": (
        2,
        "the loader of rank 2 goes on after 4 batches, but its len() is 4",
    ),
    "stream_with_accumulation": (2, "accumulate is 2, and the loader has no len()"),
    "models_that_differ": (2, "the model of rank 2 is not rank 0's: it lacks parameter 'bias'"),
    "started_twice": (2, "hvdtrain.start() was called before in this process"),
    "loss_is_no_number": (1, "step 1: the loss is no finite number on rank 2"),
    "label_out_of_range": (1, "Target 3 is out of bounds"),
    "error_on_one_rank": (1, "RuntimeError: a rank of mine broke"),
    "outside_error_on_one_rank": (1, "RuntimeError: a rank of mine broke"),
    "exit_on_one_rank": (3, ""),
}
# How one rank's end reaches the others inside a reduction is the engine's matter; the rest is the same code.
ON_BOTH = {"streams_of_other_lengths", "loader_goes_on_after_its_length", "outside_error_on_one_rank"}
CASES = [
    (mistake, backend)
    for number, mistake in enumerate(MISTAKES)
    for backend in ("horovod", "ddp")
    if mistake in ON_BOTH or (backend == "ddp") is bool(number % 2)
]


@pytest.mark.parametrize(("mistake", "backend"), CASES)
def test_a_mistake_ends_all_ranks(mistake, backend):
    launcher = "mpirun" if backend == "horovod" else "local"
    outcome, lines = run(3, launcher, "script_mistakes.py", backend, mistake)
    code, told = MISTAKES[mistake]
    assert outcome.exit_code == code, (outcome, lines)
    assert any(told in line for line in lines), lines
    if code == 1 and "Error" in told:
        assert any(line.startswith("Traceback") for line in lines), lines


@pytest.mark.parametrize(("backend", "launcher"), [("horovod", "mpirun"), ("ddp", "local")])
def test_what_is_refused_says_why(backend, launcher):
    outcome, lines = run(2, launcher, "script_mistakes.py", backend, "refused")
    assert outcome.exit_code == 0, lines
    assert lines.count("all refused") == 2


def test_ddp_notices_a_model_that_goes_past_it():
    """Horovod's hooks are the parameters', so there any model that holds them will do."""
    outcome, lines = run(2, "local", "script_mistakes.py", "ddp", "model_that_was_not_returned")
    assert outcome.exit_code == 2, lines
    assert any("does not come from the model that run.distribute returned" in line for line in lines)
    outcome, lines = run(2, "mpirun", "script_mistakes.py", "horovod", "model_that_was_not_returned")
    assert outcome.exit_code == 0, lines


def test_a_plain_mpirun_ends_with_the_same_code(run_program, bin_dir):
    """No launcher of ours is needed for a mistake to end all ranks."""
    program = [sys.executable, str(PROGRAMS / "script_mistakes.py"), "horovod"]
    argv = [str(bin_dir / "mpirun"), "-np", "3", "--oversubscribe", "--bind-to", "none", *program]
    ended = run_program([*argv, "loader_ends_before_its_length"])
    assert ended.code == 2, ended.err
    assert ended.error.startswith("hvdtrain: error: the loader of rank 2 ended")
    # One that all ranks find alike is told once, and one that another rank meets alone is told too.
    ended = run_program([*argv, "loss_is_no_number"])
    assert ended.code == 1, ended.err
    assert "step 1: the loss is no finite number on rank 2" in ended.error
    ended = run_program([*argv, "sample_on_one_rank"])
    assert ended.code == 1, ended.err
    assert "on rank 2: OSError: cannot be read" in ended.err


# What the last of 3 ranks does, and the verdict on the ranks that wait for it.
STALLS = {
    "leave_the_loop": (
        "do not match: ranks 0, 1 are waiting in run.step at script_stalls.py:",
        "after 2 steps; rank 2 is waiting in run.gather at script_stalls.py:",
    ),
    "another_call": (
        "do not match: ranks 0, 1 are waiting in run.broadcast at script_stalls.py:",
        "rank 2 is waiting in run.sum at script_stalls.py:",
    ),
    "sum_on_one_rank": (
        "do not match: ranks 0, 1 are waiting in run.step at script_stalls.py:",
        "after 2 steps; rank 2 is waiting in run.sum at script_stalls.py:",
    ),
    "sleep": (
        "stalled: rank 2 is silent in its own code at script_stalls.py:",
        "after 2 steps; ranks 0, 1 are waiting in run.step at script_stalls.py:",
    ),
}


@pytest.mark.parametrize(
    ("way", "backend", "launcher"),
    [
        *((way, "horovod", "mpirun") for way in STALLS),
        *((way, "ddp", "local") for way in STALLS if way != "another_call"),
    ],
)
def test_ranks_that_wait_in_vain(way, backend, launcher):
    """Case F9 for scripts: ended with code 4, and one line says who waits where for whom."""
    outcome, lines = run(3, launcher, "script_stalls.py", backend, way, HVDTRAIN_STALL_S="8")
    assert outcome.exit_code == 4, (outcome, lines)
    told = [line for line in lines if "stalled: " in line]
    assert told, lines
    assert all(part in told[0] for part in STALLS[way]), told
    autopsy = Path(told[0].rpartition("every rank's stack: ")[2])
    try:
        assert all(f"rank {rank}: " in autopsy.read_text() for rank in range(3))
        assert "script_stalls.py" in autopsy.read_text()
    finally:
        shutil.rmtree(autopsy.parent)


def test_calls_that_meet_with_ddp_are_told_apart_at_once():
    outcome, lines = run(3, "local", "script_stalls.py", "ddp", "another_call")
    assert outcome.exit_code == 4, (outcome, lines)
    told = "the calls of the ranks do not match: ranks 0, 1 are in run.broadcast; rank 2 is in run.sum"
    assert any(told in line for line in lines), lines


@pytest.mark.parametrize(("backend", "launcher"), [("horovod", "mpirun"), ("ddp", "local")])
def test_long_work_that_nobody_waits_for_in_vain(backend, launcher):
    outcome, lines = run(2, launcher, "script_stalls.py", backend, "work_long_alike", HVDTRAIN_STALL_S="8")
    assert outcome.exit_code == 0, lines
    assert lines.count("done 2") == 2


def test_a_batch_that_one_rank_leaves_out_is_found_in_the_next_step():
    for backend, launcher in (("horovod", "mpirun"), ("ddp", "local")):
        outcome, lines = run(3, launcher, "script_stalls.py", backend, "raise_and_swallow")
        assert outcome.exit_code == 2, (outcome, lines)
        told = "rank 1 at batch 2 of its loop, call 2, rank 2 at batch 3 of its loop, call 2"
        assert any(told in line for line in lines), lines


def test_no_call_meets_others_in_a_block_of_one_rank():
    outcome, lines = run(2, "mpirun", "script_stalls.py", "horovod", "meet_alone")
    assert outcome.exit_code == 2, (outcome, lines)
    assert any("run.sum stands inside of run.alone()" in line for line in lines), lines


def ended(size, backend, folder, **env):
    """How a loop that saves in a folder ended, and what it told."""
    launcher = "mpirun" if backend == "horovod" else "local"
    outcome, lines = run(size, launcher, "script_resume.py", backend, str(folder), **env)
    return outcome.exit_code, lines


def told_end(lines):
    return next(line for line in lines if line.startswith("end "))


@pytest.mark.parametrize("backend", ["horovod", "ddp"])
def test_a_loop_goes_on_to_the_same_end(backend, tmp_path):
    """Killed inside an epoch, asked to end in another loop over epochs; equal bit for bit."""
    code, lines = ended(2, backend, tmp_path / "whole")
    assert code == 0, lines
    end = told_end(lines)
    assert end.startswith("end 18 ")
    folder = tmp_path / "stopped"
    code, lines = ended(2, backend, folder, DIES_AT="11")
    assert code == 137, lines
    code, lines = ended(2, backend, folder, ASKED_AT="15")
    assert code == 75, lines
    # The save of step 8 may have been going on; that of the first epoch's end stood before it began.
    assert any("going on from step-8," in line or "going on from step-6," in line for line in lines), lines
    assert any("preempted after step 16" in line for line in lines), lines
    code, lines = ended(2, backend, folder)
    assert code == 0, lines
    assert any("going on from step-16, which 2 rank(s) saved" in line for line in lines), lines
    assert told_end(lines) == end
    # Nothing is left to do: the loops are over at once, and so it is with another number of ranks.
    for size in (2, 1):
        code, lines = ended(size, backend, folder)
        assert code == 0, lines
        assert told_end(lines).startswith("end 18 ")


@pytest.mark.parametrize("backend", ["horovod", "ddp"])
def test_rank_0_may_take_as_long_as_it_likes_with_its_disk_and_its_end(backend, tmp_path):
    """Reading, writing and the end each take longer than a rank may wait in a call, and than DDP's limit."""
    launcher = "mpirun" if backend == "horovod" else "local"
    for began in (0, 2):
        outcome, lines = run(2, launcher, "script_slow.py", backend, str(tmp_path))
        assert outcome.exit_code == 0, (outcome, lines)
        assert lines.count(f"began with {began}") == 2, lines


def test_a_loop_goes_on_in_another_world(tmp_path):
    code, lines = ended(3, "horovod", tmp_path, ASKED_AT="9")
    assert code == 75, lines
    code, lines = ended(1, "single", tmp_path)
    assert code == 0, lines
    assert told_end(lines).startswith("end 18 ")

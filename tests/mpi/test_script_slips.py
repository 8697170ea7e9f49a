"""What users forget when they change their loop is refused, or told; nothing trains wrongly in silence."""

import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hvdtrain.launch.job import launch_job
from hvdtrain.launch.machine import local_plan
from hvdtrain.launch.supervise import failure_text

pytestmark = pytest.mark.mpi

PROGRAM = Path(__file__).parent / "programs" / "script_slips.py"
EARLY_PROGRAM = PROGRAM.with_name("script_early.py")
BACKENDS = [("horovod", "mpirun"), ("ddp", "local")]


def run(backend, launcher, slip, *args, program=PROGRAM):
    plan = local_plan(2, 2, os.environ)
    program = (sys.executable, str(program), backend, slip, *args)
    plan = replace(plan, program=program, env={**plan.env, "CUDA_VISIBLE_DEVICES": ""})
    lines = []
    outcome = launch_job(
        plan, lambda line: lines.append(line.text), lambda *_: None, launcher=launcher, timeout_s=120
    )
    return outcome.exit_code, "\n".join([*lines, failure_text(outcome)])


@pytest.mark.parametrize(("backend", "launcher"), BACKENDS)
@pytest.mark.parametrize("slip", ["own_step", "own_loop"])
def test_a_step_of_the_users_own_is_refused(slip, backend, launcher):
    code, told = run(backend, launcher, slip)
    assert code == 2, told
    assert "error: optimizer.step() was called outside of run.step; leave out loss.backward()" in told


@pytest.mark.parametrize(("backend", "launcher"), BACKENDS)
def test_an_optimizer_that_was_distributed_before_is_refused(backend, launcher):
    code, told = run(backend, launcher, "distributed_again")
    assert code == 2, told
    assert "distribute each optimizer once" in told


@pytest.mark.parametrize(("backend", "launcher"), BACKENDS)
def test_a_rank_that_leaves_early_is_named_soon(backend, launcher):
    code, told = run(backend, launcher, "left_early")
    assert code == 4, told
    place = r"at script_slips\.py:\d+ after 2 steps"
    assert re.search(rf"do not match: rank 0 is waiting in run\.step {place}", told), told
    assert re.search(rf"rank 1 is waiting in the end of the run {place}", told), told


HOROVOD, DDP = BACKENDS
# What the others call while the last rank is at its end, whether the run saves, and what is told of them. How
# ranks are named is the same code on both engines; what could answer a call is not.
EARLY = [
    (DDP, "gather_last", False, "do not match: rank 0 is in run.gather; rank 1 is in the end of the run"),
    (HOROVOD, "gather", True, "rank 0 is waiting in run.gather at script_early.py"),
    (HOROVOD, "own_loader", False, "rank 0 is waiting in run.progress at its start at script_early.py"),
    (DDP, "checkpoint", True, "do not match: rank 0 is in run.checkpoint; rank 1 is in the end of the run"),
    (DDP, "alone", True, "the calls of the ranks do not match: rank 0 is in run.alone; rank 1 is in the end"),
    (
        HOROVOD,
        "alone",
        False,
        "the calls of the ranks do not match: rank 0 is in run.alone; rank 1 is in the end",
    ),
]


@pytest.mark.parametrize(("engine", "way", "saves", "named"), EARLY)
def test_a_rank_at_its_end_answers_no_call_of_the_others(engine, way, saves, named, tmp_path):
    folder = [str(tmp_path)] if saves else []
    code, told = run(*engine, way, *folder, program=EARLY_PROGRAM)
    assert code == 4, told
    assert "got" not in told
    assert "stalled: " in told
    assert named in told
    assert "the end of the run" in told


@pytest.mark.parametrize(("backend", "launcher"), BACKENDS)
def test_ranks_that_end_together(backend, launcher, tmp_path):
    code, told = run(backend, launcher, "nothing", str(tmp_path), program=EARLY_PROGRAM)
    assert code == 0, told


def test_weights_that_are_all_zero_are_told():
    code, told = run("horovod", "mpirun", "weightless")
    assert code == 0, told
    assert "step 6 left out on all ranks: their weights are all zero" in told


def test_the_mean_loss_leaves_out_what_was_left_out():
    code, told = run("horovod", "mpirun", "no_number")
    assert code == 0, told
    assert "step 2 left out on all ranks: the loss is no finite number on rank 0" in told
    assert re.search(r"epoch 1/1  6 batches  loss \d\.\d+", told), told

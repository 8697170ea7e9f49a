"""The engines keep the protocol's promises at 1, 2, 3 and 5 ranks, under both kinds of launch."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hvdtrain.launch.job import launch_job
from hvdtrain.launch.machine import local_plan

PROGRAMS = Path(__file__).parent / "programs"
pytestmark = pytest.mark.mpi


def run(size, backend, launcher, name="collectives.py"):
    program = (sys.executable, str(PROGRAMS / name), backend, launcher)
    plan = replace(local_plan(size, 5, os.environ), program=program)
    lines = []
    outcome = launch_job(plan, lines.append, lambda rank, event: None, launcher=launcher)
    return outcome, [line.text for line in lines]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("backend", ["horovod", "ddp"])
def test_under_mpirun(backend, size):
    outcome, lines = run(size, backend, "mpirun")
    assert outcome.exit_code == 0, lines
    assert sorted(line for line in lines if line.endswith("ok")) == [
        f"rank {rank} of {size} ok" for rank in range(size)
    ]


@pytest.mark.parametrize("backend", ["horovod", "ddp"])
def test_without_mpi(backend):
    """Horovod meets over Gloo where no MPI started the ranks."""
    outcome, lines = run(3, backend, "local")
    assert outcome.exit_code == 0, lines
    assert sum(line.endswith("of 3 ok") for line in lines) == 3


def test_single():
    outcome, lines = run(1, "single", "local")
    assert outcome.exit_code == 0, lines
    assert "rank 0 of 1 ok" in lines


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("backend", ["horovod", "ddp"])
def test_the_step_is_exact(backend, size):
    """Accumulation, weights, clipping, NaN, branches, sparse, batch norm, precision: see the program."""
    outcome, lines = run(size, backend, "mpirun", "exact_step.py")
    assert outcome.exit_code == 0, lines
    assert sorted(line for line in lines if line.endswith("ok")) == [
        f"rank {rank} of {size} ok" for rank in range(size)
    ]


def test_the_step_alone_is_exact():
    outcome, lines = run(1, "single", "local", "exact_step.py")
    assert outcome.exit_code == 0, lines
    assert "rank 0 of 1 ok" in lines

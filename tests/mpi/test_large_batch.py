"""LARS and LAMB over real ranks are those of one process, with each engine."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hvdtrain.launch.job import launch_job
from hvdtrain.launch.machine import local_plan

PROGRAM = Path(__file__).parent / "programs" / "large_batch.py"
pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("backend", ["horovod", "ddp"])
def test_ranks_step_like_one_process(backend, size):
    plan = replace(local_plan(size, 5, os.environ), program=(sys.executable, str(PROGRAM), backend))
    lines = []
    outcome = launch_job(plan, lines.append, lambda rank, event: None, launcher="mpirun")
    texts = [line.text for line in lines]
    assert outcome.exit_code == 0, texts
    assert sorted(text for text in texts if text.endswith("ok")) == [
        f"rank {rank} of {size} ok" for rank in range(size)
    ]

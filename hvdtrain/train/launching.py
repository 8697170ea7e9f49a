"""What the launcher must know of a training: program, variables and error line. No torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from hvdtrain.config import Job
from hvdtrain.train.rundir import RunDirectory

JOB = "HVDTRAIN_JOB"
RUN_DIR = "HVDTRAIN_RUN_DIR"
IMPORT_PATH = "HVDTRAIN_IMPORT_PATH"
COMMIT_STEPS = "HVDTRAIN_COMMIT_STEPS"
DEFAULT_COMMIT_STEPS = 10
_ERROR_MARK = "hvdtrain: error: "


def rank_program(
    job: Job, run: RunDirectory | None, import_path: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The program of every rank and the variables that carry its job to it."""
    # -P keeps the working folder's own json.py or random.py from taking the place of Python's.
    program = (sys.executable, "-P", "-m", "hvdtrain.train.rank")
    env = {
        JOB: job.model_dump_json(by_alias=True, exclude_unset=True),
        IMPORT_PATH: os.pathsep.join(import_path),
    }
    if run:
        env[RUN_DIR] = str(run.path.resolve())
    return program, env


def elastic_program() -> tuple[str, ...]:
    """The program of every rank that may go while others go on; it takes the same variables."""
    return (sys.executable, "-P", "-m", "hvdtrain.train.elastic")


def own_error(tail: Sequence[str]) -> str:
    """The one line with which a rank told an error of the user's; empty for any other end."""
    told = [line for line in tail if line.startswith(_ERROR_MARK)]
    return told[-1].removeprefix(_ERROR_MARK) if told else ""

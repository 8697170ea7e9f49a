"""One rank of a run, from knowing who it is to the result.

``python -m hvdtrain.train.rank`` is what our launcher starts. Job and run directory come in the
variables of ``launching``, and rank 0's events leave on stdout as lines that begin with
``EVENT_MARK``. Ranks that a foreign launcher started come here by way of ``joining``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from hvdtrain.backends.base import Backend
from hvdtrain.backends.choose import choose_backend
from hvdtrain.backends.start import start_backend
from hvdtrain.config import Job
from hvdtrain.errors import AgreedError, ExitCode, Preempted
from hvdtrain.topology.environ import World, find_world
from hvdtrain.train import done
from hvdtrain.train.autopsy import clear_reports
from hvdtrain.train.build import Build, Lookouts, build_trainer
from hvdtrain.train.ending import end_rank
from hvdtrain.train.environment import prepare_environment
from hvdtrain.train.launching import IMPORT_PATH, JOB, RUN_DIR
from hvdtrain.train.locking import await_last_life
from hvdtrain.train.observe import Emit, finite
from hvdtrain.train.parts import Outcome
from hvdtrain.train.preemption import Watch, deadline
from hvdtrain.train.rundir import RunDirectory
from hvdtrain.train.seats import Seating, take_seats
from hvdtrain.train.stall import Sentinel
from hvdtrain.train.trainer import Trainer

EVENT_MARK = "\x1ehvdtrain "

OpenRun = Callable[[Backend, Seating], RunDirectory | None]


def run_rank(
    job: Job,
    world: World,
    open_run: OpenRun,
    emit: Emit,
    build: Build = build_trainer,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Trains as one rank; returns the result document.

    Args:
        job: The job, the same on all ranks.
        world: Which rank this is.
        open_run: Gives rank 0's run directory and None elsewhere; it may use collectives.
        emit: Shows an event to the user; called on rank 0 only.
        build: Makes the trainer.
        watch: Knows whether this rank was asked to end; None makes one from the job.

    Raises:
        HvdtrainError: With the one line that the user gets.
    """
    name, why = choose_backend(job.backend, world.size)
    notes = [why, world.notice, *prepare_environment(job.tuning, world, name)]
    backend = start_backend(name, world)
    run = open_run(backend, take_seats(backend))
    if job.resume == "auto" and (result := backend.broadcast(run.result if run else None)):
        if run:
            emit({"event": "note", "text": done.told(result)})
        backend.close()
        return {**result, "run_dir": result["run_dir"] if run else None}
    if run:
        run.begin_writing()
        for note in filter(None, notes):
            emit({"event": "note", "text": note})
    sentinel = Sentinel(job.stall, backend.rank, backend.size, _report_folder(backend, run))
    sentinel.begin()
    with closing(sentinel):
        trainer = build(job, backend, run, emit, Lookouts(watch or watch_of(job), sentinel))
        with closing(trainer):
            try:
                result = _train(trainer, backend, run, emit)
            except AgreedError:
                # Who ends is the end of all: the save that rank 0 may be at stands first.
                sentinel.extend()
                trainer.close()
                backend.gather(None)
                raise
    backend.close()
    return result


def watch_of(job: Job) -> Watch:
    """What takes note of the job's signals, and of the end of the allocation around."""
    return Watch(job.preemption.signals, deadline(os.environ, job.preemption.margin_s))


def _train(trainer: Trainer, backend: Backend, run: RunDirectory | None, emit: Emit) -> dict[str, Any]:
    try:
        outcome = trainer.fit()
        result = _result(outcome, backend, run)
        if run and result["loss"] is None:
            emit(
                {
                    "event": "note",
                    "text": "the training diverged: its loss is no finite number (null in JSON)",
                }
            )
        result["saved_step"] = trainer.save_last(outcome)
        trainer.finish(result)
    except Preempted as error:
        if run:
            run.write_status("preempted", step=error.step, reason=error.reason)
        # All ranks are here: none must see the others vanish.
        backend.close()
        raise
    return result


def _report_folder(backend: Backend, run: RunDirectory | None) -> Path | None:
    """The run directory, where this rank's host sees it; collective."""
    if run:
        clear_reports(run.path)
    told = backend.broadcast(str(run.path) if run else "")
    # os.path.exists: on another host the user may lack the right to search the way there.
    return Path(told) if told and os.path.exists(Path(told, "job.yaml")) else None


def _result(outcome: Outcome, backend: Backend, run: RunDirectory | None) -> dict[str, Any]:
    """The result document; a value that is no number, as of a run that diverged, is null."""
    return finite(
        {
            "schema": 1,
            "run_dir": str(run.path) if run else None,
            "backend": backend.name,
            "size": backend.size,
            "epochs": outcome.epochs,
            "steps": outcome.steps,
            "skipped_steps": outcome.skipped,
            "loss": outcome.train.loss,
            "accuracy": outcome.validation.accuracy,
            "validation_loss": outcome.validation.loss,
            "metrics": finite(outcome.metrics),
            "samples_per_s": round(outcome.samples_per_s, 1),
        }
    )


def relay(event: Mapping[str, Any]) -> None:
    """Sends an event to the launcher."""
    sys.stdout.write(f"{EVENT_MARK}{json.dumps(event)}\n")
    sys.stdout.flush()


def _relay_note(text: str) -> None:
    relay({"event": "note", "text": text})


def run_program(env: Mapping[str, str], train: Callable[[Job, World], object]) -> int:
    """The program of a rank that our launcher started; returns its exit code, or ends with one.

    Args:
        env: The environment, with the variables of ``launching``.
        train: Trains as the rank that this is.
    """
    try:
        world = find_world(env)
        # Where factories of the user's are looked for. Last, so that a queue.py or a statistics.py
        # in the working folder does not take the place of Python's own.
        sys.path += [folder for folder in env.get(IMPORT_PATH, "").split(os.pathsep) if folder]
        train(Job.model_validate_json(env[JOB]), world)
    except Preempted as error:
        return int(error.exit_code)
    except BaseException as error:
        end_rank(error)
    return int(ExitCode.DONE)


def main(env: Mapping[str, str]) -> int:
    """Trains in the world that the launcher made."""

    def train(job: Job, world: World) -> None:
        run = RunDirectory(Path(env[RUN_DIR])) if world.rank == 0 else None

        def open_run(_backend: Backend, _seating: Seating) -> RunDirectory | None:
            if run:  # the launcher holds the directory itself
                await_last_life(env, [run.checkpoints], job.stall, _relay_note)
            return run

        run_rank(job, world, open_run, relay)

    return run_program(env, train)


if __name__ == "__main__":
    sys.exit(main(os.environ))

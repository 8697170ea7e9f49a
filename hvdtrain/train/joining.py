"""Trains as one rank of a launch that somebody else made: foreign mpirun, srun, horovodrun, torchrun."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtrain.backends.base import Backend
from hvdtrain.config import Job
from hvdtrain.data.validate import validate_source
from hvdtrain.errors import ExitCode, HvdtrainError, InputError
from hvdtrain.topology.environ import World
from hvdtrain.train.observe import Emit
from hvdtrain.train.preflight import check_batch
from hvdtrain.train.rank import end_rank, run_rank
from hvdtrain.train.rundir import RunDirectory, create_run_directory
from hvdtrain.train.seats import Seating


@dataclass
class _Joined:
    """One rank's view of the run; rank 0 holds its directory."""

    job: Job
    world: World
    run_dir: Path | None
    overwrite: bool
    emit: Emit
    run: RunDirectory | None = None
    started: bool = False

    def open_run(self, backend: Backend, seating: Seating) -> RunDirectory | None:
        """Rank 0 looks at the data and makes the directory, and all hear whether that went well."""
        problem = ""
        if backend.rank == 0:
            try:
                validate_source(self.job.data)
                self.run = create_run_directory(self.job, self.run_dir, overwrite=self.overwrite)
                self.run.write_json("plan.json", _plan(self.world, seating))
            except InputError as error:
                problem = str(error)
        if problem := backend.broadcast(problem):
            raise InputError(problem)
        return self.run

    def show(self, event: dict[str, Any]) -> None:
        """Hands an event on."""
        self.started |= event.get("event") in ("step", "epoch")
        self.emit(event)

    def record(self, error: BaseException) -> None:
        """Leaves a directory that says how the run ended, or none where it never began.

        Only rank 0 can: when another rank fails, the launcher ends rank 0 before it hears of it.
        """
        if self.run is None:
            return
        if isinstance(error, InputError) and not self.started:
            self.run.discard()
            return
        code = error.exit_code if isinstance(error, HvdtrainError) else ExitCode.FAILED
        told = " ".join(str(error).split()) or type(error).__name__
        self.run.write_status("failed", exit_code=int(code), error=told)


def join(job: Job, world: World, run_dir: Path | None, overwrite: bool, emit: Emit) -> dict[str, Any]:
    """Trains and returns the result document; never returns from a failure.

    Args:
        job: The job, the same on all ranks.
        world: Which rank this is.
        run_dir: The run directory that the user named, if any.
        overwrite: Whether a run that it holds is lost.
        emit: Shows an event to the user; a ``close`` of it is called before a failed rank ends.
    """
    joined = _Joined(job, world, run_dir, overwrite, emit)
    try:
        check_batch(job, world.size)
        return run_rank(job, world, joined.open_run, joined.show)
    except BaseException as error:
        joined.record(error)
        getattr(emit, "close", lambda: None)()
        end_rank(error, world)


def _plan(world: World, seating: Seating) -> dict[str, Any]:
    """What is known of a launch that somebody else made."""
    ranks = [{"rank": seat.rank, "host": seat.host, "device": seat.device or None} for seat in seating.seats]
    return {"schema": 1, "source": world.launcher, "size": world.size, "ranks": ranks}

"""``hvdtrain.start()``: a user's script joins the launch that it belongs to."""

from __future__ import annotations

import logging
import os
import secrets
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvdtrain.backends.base import Backend
from hvdtrain.backends.choose import choose_backend
from hvdtrain.backends.start import start_backend
from hvdtrain.config import TuningConfig
from hvdtrain.data.passes import check_accumulate
from hvdtrain.errors import InputError
from hvdtrain.topology.environ import World, find_world
from hvdtrain.train.ending import end_rank
from hvdtrain.train.environment import prepare_environment
from hvdtrain.train.handed import check_start
from hvdtrain.train.profile_request import asked_profile
from hvdtrain.train.randomness import seed_everything
from hvdtrain.train.script import Run, Settings
from hvdtrain.train.script_profile import open_diary
from hvdtrain.train.seats import Seating, take_seats
from hvdtrain.train.settings import chosen_backend, chosen_stall_s
from hvdtrain.train.step import StepRules
from hvdtrain.train.waiting import Waiting

_active: list[Run] = []
# The engines of runs that were closed.
_ended: list[str] = []


def start(
    *,
    backend: str = "auto",
    seed: int = 0,
    accumulate: int = 1,
    precision: str = "fp32",
    stall_s: float | None = None,
    tuning: Mapping[str, Any] | None = None,
) -> Run:
    """Joins the launch that this process belongs to, or is a launch of one; collective.

    Args:
        backend: ``auto`` (Horovod where it is built), ``horovod``, ``ddp`` or ``single``; where it is not
            given the variable HVDTRAIN_BACKEND says it.
        seed: Of Python's, NumPy's and torch's generators, the same on all ranks until ``distribute``,
            and of the order of samples.
        accumulate: Passes that make a step.
        precision: ``fp32``, ``bf16`` or ``fp16``: what ``run.autocast()`` computes in; fp16 comes with a
            loss scaler.
        stall_s: How long a rank may wait in one call for others before all end with exit code 4; where it is
            not given the variable HVDTRAIN_STALL_S says it, or it is 300.
        tuning: The keys of a job file's ``tuning`` section.

    Raises:
        InputError: Something does not fit; on several ranks it ends them with exit code 2 instead.
    """
    world = World()
    try:
        world = find_world(os.environ)
        if _active:
            raise InputError(
                "hvdtrain.start() was called before in this process", do="use the run it returned"
            )
        check_start(backend, seed, {} if tuning is None else tuning)
        check_accumulate(accumulate)
        StepRules(precision=precision).check()
        limit_s = chosen_stall_s(stall_s, os.environ)
        engine = chosen_backend(backend, os.environ)
        return _join(world, engine, Settings(seed, accumulate, precision, limit_s), tuning or {})
    except BaseException as error:
        if world.size > 1 or (isinstance(error, InputError) and not sys.flags.interactive):
            end_rank(error, world)
        raise


def _join(world: World, asked: str, settings: Settings, tuning: Mapping[str, Any]) -> Run:
    name, why = choose_backend(asked, world.size)
    if name == "horovod" and _ended:
        raise InputError(
            "a run with Horovod ended in this process, and MPI starts once only",
            do="do everything inside of one hvdtrain.start()",
        )
    notes = [why, world.notice, *prepare_environment(_tuning(tuning), world, name)]
    engine = start_backend(name, world)
    folder = _report_folder(engine, take_seats(engine))
    seed_everything(settings.seed)
    waiting = Waiting(settings.stall_s, engine.rank, engine.size, folder)
    logger = _logger(world.rank)
    diary = open_diary(engine, asked_profile(os.environ), settings, logger.info)
    run = Run(engine, waiting, logger, settings, _forget, diary)
    for note in filter(None, notes):
        run.logger.info(note)
    run.logger.info(
        "%d rank%s, backend %s on %s", run.size, "s" if run.size > 1 else "", engine.name, run.device.type
    )
    _active.append(run)
    if world.size > 1:
        # Outside the with block too: a rank that ends by an exception must not leave the others waiting.
        sys.excepthook = lambda _kind, error, _trace: end_rank(error, world)
    return run


def _forget(run: Run) -> None:
    """A run is closed."""
    run.diary.finish()
    _active.remove(run)
    _ended.append(run.backend_name)


def _report_folder(engine: Backend, seating: Seating) -> Path | None:
    """A name for where ranks report that wait in vain, if one host holds all of them; collective."""
    name = Path(tempfile.gettempdir(), f"hvdtrain-stall-{secrets.token_hex(8)}")
    told = Path(engine.broadcast(str(name)))
    return told if len({seat.host for seat in seating.seats}) == 1 else None


def _tuning(given: Mapping[str, Any]) -> TuningConfig:
    from pydantic import ValidationError

    from hvdtrain.config.words import fault

    try:
        return TuningConfig(**given)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "extra_forbidden":
            raise InputError(
                f"unknown key {str(first['loc'][0])!r} in tuning", legal=", ".join(TuningConfig.model_fields)
            ) from None
        where = ".".join(map(str, ("tuning", *first["loc"])))
        raise InputError(f"{fault(first)}, found {first['input']!r}", where=where) from None


def _logger(rank: int) -> logging.Logger:
    logger = logging.getLogger("hvdtrain")
    logger.setLevel(logging.INFO if rank == 0 else logging.WARNING)
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("hvdtrain: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
    return logger

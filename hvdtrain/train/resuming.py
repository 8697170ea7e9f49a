"""Goes on from a checkpoint: rank 0 reads it, all ranks get what is theirs.

Only rank 0's node has to see the files. The parameters and the optimizer's state reach the other ranks
with ``Backend.distribute``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hvdtrain.backends.base import Backend
from hvdtrain.config import Job
from hvdtrain.data.partition import Partition
from hvdtrain.errors import InputError
from hvdtrain.train.checkpoint import load_checkpoint
from hvdtrain.train.rundir import RunDirectory
from hvdtrain.train.schedule import Position
from hvdtrain.train.store import newest_whole


@dataclass(frozen=True)
class Resumed:
    """Where a run goes on, as every rank knows it.

    Attributes:
        at: How far it was.
        shared: What was saved for all ranks, besides model and optimizer.
        own: What this rank saved for itself, or its part of what the ranks of another world saved.
        notes: What the user should know.
    """

    at: Position
    shared: Mapping[str, Any]
    own: Mapping[str, Any]
    notes: tuple[str, ...]


# ``resume`` and others that take its arguments.
Restore = Callable[
    [Backend, RunDirectory | None, nn.Module, torch.optim.Optimizer, Mapping[str, int]], Resumed | None
]


def order_of(job: Job, partition: Partition) -> dict[str, int]:
    """What decides the order of an epoch's samples, where neither ``seed`` nor ``data`` of a job tell it.

    Args:
        job: The job.
        partition: Of its training data.

    Returns:
        ``samples``: of an epoch. ``group``: samples that ``data.sampling: length`` sorts together, which
        may follow the number of ranks; 0 with other samplings.
    """
    sampling = getattr(job.data, "sampling", None)
    group = 0
    if sampling is not None and sampling.name == "length":
        group = sampling.group or partition.step_size
    return {"samples": partition.num_samples, "group": group}


def resume(
    backend: Backend,
    run: RunDirectory | None,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    order: Mapping[str, int],
) -> Resumed | None:
    """Puts the newest whole checkpoint into rank 0's model and optimizer; collective.

    Call it before ``Backend.distribute``.

    Args:
        backend: How bytes move.
        run: The run directory on rank 0, None elsewhere.
        model: As built from the job.
        optimizer: Over its parameters.
        order: As ``order_of`` gives it now.

    Returns:
        Where to go on; None where there is no checkpoint to go on from.

    Raises:
        InputError: The checkpoint does not fit the job's model, or lies inside an epoch whose order changed.
    """
    found: dict[str, Any] | str | None = None
    if run is not None:
        try:
            found = _read(run, model, optimizer, order)
        except InputError as error:
            found = str(error)
    return hand_out(backend, found)


def start_anew(*_: object) -> None:
    """Goes on from nothing, where ``resume`` would be called."""


def hand_out(backend: Backend, found: dict[str, Any] | str | None) -> Resumed | None:
    """Gives every rank what is its own of what rank 0 found; collective.

    Args:
        backend: How bytes move.
        found: On rank 0 what a checkpoint holds, besides model and optimizer, with ``notes``; or why it
            cannot be used; or None where there is nothing to go on from.

    Raises:
        InputError: It cannot be used.
    """
    found = backend.broadcast(found)
    if isinstance(found, str):
        raise InputError(found)
    if found is None:
        return None
    at = Position(found.pop("step"), found.pop("epoch"), found.pop("consumed"))
    notes = tuple(found.pop("notes"))
    return Resumed(at, found, _own(found.pop("ranks"), backend.rank, backend.size), notes)


def _read(
    run: RunDirectory, model: nn.Module, optimizer: torch.optim.Optimizer, order: Mapping[str, int]
) -> dict[str, Any] | None:
    stored, passed_over = newest_whole(run.checkpoints)
    notes = [f"passed over {other.path.name}: {other.fault}" for other in passed_over]
    if stored is None:
        return None if not notes else _nothing_whole(run, notes)
    try:
        state = load_checkpoint(stored.path)
        notes += take_in(str(stored.path), state, model, optimizer, order)
    except (ValueError, RuntimeError, KeyError) as error:
        raise InputError(
            f"the checkpoint does not fit the job: {error}",
            where=str(stored.path),
            do="go on with the job file that made it, or start anew in another --run-dir",
        ) from None
    ranks = state["ranks"]
    state["notes"] = [*notes, f"going on from {stored.path.name}, which {len(ranks)} rank(s) saved"]
    return state


def take_in(
    where: str,
    state: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    order: Mapping[str, int],
) -> list[str]:
    """Moves what was saved of model and optimizer into those of now; returns what the user should know.

    Raises:
        InputError: The rest of an epoch would not be what it was.
        ValueError, RuntimeError, KeyError: They do not fit.
    """
    notes = _changes(where, state, order)
    model.load_state_dict(state.pop("model"))
    optimizer.load_state_dict(state.pop("optimizer"))
    return notes


def _changes(where: str, state: dict[str, Any], order: Mapping[str, int]) -> list[str]:
    """Refuses to go on inside an epoch whose order is another one now; between two epochs tells of it."""
    saved = state.pop("order", order)
    told = {
        "samples": "the training data had {} samples when it was saved and has {} now",
        "group": "data.sampling sorted {} samples together when it was saved and sorts {} now",
    }
    changes = [told[key].format(saved[key], order[key]) for key in told if saved[key] != order[key]]
    if changes and state["consumed"]:
        raise InputError(
            f"{'; '.join(changes)}: of the rest of its epoch samples would be lost or read twice",
            where=where,
            do="give data, number of ranks and batch as they were, or start anew in another --run-dir",
        )
    return changes


def _nothing_whole(run: RunDirectory, notes: list[str]) -> dict[str, Any]:
    raise InputError(
        f"no checkpoint is whole: {'; '.join(notes)}",
        where=str(run.checkpoints),
        do="remove the checkpoints to start anew, or pass --overwrite",
    )


def _own(ranks: list[Mapping[str, Any]], rank: int, size: int) -> Mapping[str, Any]:
    """A rank's part; after a change of world rank 0 takes the sums of all, and random streams begin anew."""
    if len(ranks) == size:
        return ranks[rank]
    names = ("epoch_sums", "window")
    if rank > 0:
        return {name: [0.0] * len(ranks[0][name]) for name in names}
    return {
        name: [sum(column) for column in zip(*(own[name] for own in ranks), strict=True)] for name in names
    }

"""Goes on from a checkpoint: rank 0 reads it, all ranks get what is theirs.

Only rank 0's node has to see the files. The parameters and the optimizer's state reach the other ranks
with ``Backend.distribute``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hvdtrain.backends.base import Backend
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


def resume(
    backend: Backend, run: RunDirectory | None, model: nn.Module, optimizer: torch.optim.Optimizer
) -> Resumed | None:
    """Puts the newest whole checkpoint into rank 0's model and optimizer; collective.

    Call it before ``Backend.distribute``.

    Args:
        backend: How bytes move.
        run: The run directory on rank 0, None elsewhere.
        model: As built from the job.
        optimizer: Over its parameters.

    Returns:
        Where to go on; None where there is no checkpoint to go on from.

    Raises:
        InputError: The checkpoint does not fit the job's model.
    """
    found: dict[str, Any] | str | None = None
    if run is not None:
        try:
            found = _read(run, model, optimizer)
        except InputError as error:
            found = str(error)
    found = backend.broadcast(found)
    if isinstance(found, str):
        raise InputError(found)
    if found is None:
        return None
    at = Position(found.pop("step"), found.pop("epoch"), found.pop("consumed"))
    notes = tuple(found.pop("notes"))
    return Resumed(at, found, _own(found.pop("ranks"), backend.rank, backend.size), notes)


def _read(run: RunDirectory, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
    stored, passed_over = newest_whole(run.checkpoints)
    notes = [f"passed over {other.path.name}: {other.fault}" for other in passed_over]
    if stored is None:
        return None if not notes else _nothing_whole(run, notes)
    try:
        state = load_checkpoint(stored.path)
        model.load_state_dict(state.pop("model"))
        optimizer.load_state_dict(state.pop("optimizer"))
    except (ValueError, RuntimeError, KeyError) as error:
        raise InputError(
            f"the checkpoint does not fit the job: {error}",
            where=str(stored.path),
            do="go on with the job file that made it, or start anew in another --run-dir",
        ) from None
    ranks = state["ranks"]
    state["notes"] = [*notes, f"going on from {stored.path.name}, which {len(ranks)} rank(s) saved"]
    return state


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

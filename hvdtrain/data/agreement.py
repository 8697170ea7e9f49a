"""Checks that ranks hold data that can be split: pure functions of facts that were gathered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hvdtrain.data.partition import Tail
from hvdtrain.errors import InputError

_SHOWN = 8


def check_equal_lengths(lengths: Sequence[int], name: str = "the training data set") -> None:
    """Refuses a data set that does not have the same length on all ranks.

    Args:
        lengths: ``len(dataset)`` of each rank, in the order of ranks.
        name: Of the data set, for the message.

    Raises:
        InputError: The lengths differ; it names all of them with their ranks.
    """
    holders: dict[int, list[int]] = {}
    for rank, length in enumerate(lengths):
        holders.setdefault(length, []).append(rank)
    if len(holders) > 1:
        found = [f"{length} ({name_ranks(ranks)})" for length, ranks in holders.items()]
        raise InputError(
            f"{name} has different lengths: {_listed(found)}",
            legal="the same samples in the same order on every rank",
            do="do not split it by rank yourself, and check that all hosts see the same files",
        )


def check_world(num_samples: int, num_ranks: int, tail: Tail = "weight") -> None:
    """Refuses training data of fewer samples than ranks; a validation set may be that small.

    With tail ``pad`` each rank gets a copy. ``drop`` is refused by ``Partition``.

    Raises:
        InputError: Some ranks would hold no sample in any step; it names them.
    """
    if tail == "weight" and num_samples < num_ranks:
        idle = name_ranks(range(num_samples, num_ranks))
        raise InputError(
            f"{num_samples} training samples for {num_ranks} ranks: {idle} would never have one",
            do=f"use at most {num_samples} rank{'s' * (num_samples > 1)}, or tail=pad"
            if num_samples
            else "add samples",
        )


def check_equal_batches(num_batches: Mapping[int, int]) -> None:
    """Refuses an epoch whose ranks ended after different numbers of batches.

    Args:
        num_batches: Batches that each rank's loader gave, by rank.

    Raises:
        InputError: The numbers differ; it names them with their ranks.
    """
    holders: dict[int, list[int]] = {}
    for rank, number in sorted(num_batches.items()):
        holders.setdefault(number, []).append(rank)
    if len(holders) > 1:
        found = [f"{number} ({name_ranks(ranks)})" for number, ranks in sorted(holders.items())]
        raise InputError(
            f"the loaders of the ranks gave different numbers of batches: {_listed(found)}",
            do="let hvdtrain split the data: run.loader(dataset, batch_size=...)",
        )


def name_ranks(ranks: Sequence[int]) -> str:
    """Ranks in ascending order as text: ``rank 3``, ``ranks 0 to 2, 5, 6``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts: list[str] = []
    for low, high in runs:
        parts += [f"{low} to {high}"] if high > low + 1 else map(str, range(low, high + 1))
    return f"rank{'s' if len(ranks) > 1 else ''} {_listed(parts)}"


def _listed(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    return ", ".join(parts[:_SHOWN]) + more

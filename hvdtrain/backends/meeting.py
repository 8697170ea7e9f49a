"""Whether the ranks that met are where each of them thinks that they are."""

from __future__ import annotations

from collections.abc import Sequence

from hvdtrain.errors import UnmatchedError

_SHOWN = 8


def check_met(places: Sequence[str]) -> None:
    """Refuses ranks that met at different places; all of them find the same.

    Args:
        places: Of each rank, in the order of ranks.

    Raises:
        UnmatchedError: With the ranks at each place.
    """
    found: dict[str, list[int]] = {}
    for rank, place in enumerate(places):
        found.setdefault(place, []).append(rank)
    if len(found) > 1:
        told = "; ".join(f"{_named(ranks)} in {place}" for place, ranks in found.items())
        raise UnmatchedError(f"stalled: the calls of the ranks do not match: {told}")


def _named(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:_SHOWN])) + (" ..." if len(ranks) > _SHOWN else "")
    return f"rank {shown} is" if len(ranks) == 1 else f"ranks {shown} are"

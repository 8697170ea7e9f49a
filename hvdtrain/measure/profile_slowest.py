"""Which rank the others wait for. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from hvdtrain.scaling.profile import RankTimes


@dataclass(frozen=True)
class Slowest:
    """The rank that works longest in a step.

    Attributes:
        rank: Its number.
        host: Where it is.
        excess: How much longer than the median of the others, as a fraction; 0 where it is alone.
        part: What of its work is longer than theirs most.
    """

    rank: int
    host: str
    excess: float
    part: str


def slowest(ranks: Sequence[RankTimes]) -> Slowest:
    """The slowest rank, by its own work: load, forward, backward and optimizer."""
    first = max(ranks, key=_work)
    others = [one for one in ranks if one is not first]
    if not others:
        return Slowest(first.rank, first.host, 0.0, _largest(first, []))
    usual = median(map(_work, others))
    excess = _work(first) / usual - 1 if usual > 0 else 0.0
    return Slowest(first.rank, first.host, max(0.0, excess), _largest(first, others))


_WORK = ("load", "forward", "backward", "optimizer")


def _work(ranks: RankTimes) -> float:
    return sum(_seconds(ranks, name) for name in _WORK)


def _largest(first: RankTimes, others: Sequence[RankTimes]) -> str:
    def more(name: str) -> float:
        usual = median(_seconds(one, name) for one in others) if others else 0.0
        return _seconds(first, name) - usual

    return max(_WORK, key=more)


def _seconds(ranks: RankTimes, name: str) -> float:
    return float(getattr(ranks, f"{name}_s"))

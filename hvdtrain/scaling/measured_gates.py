"""Limits that a user sets on what is predicted from measured throughputs, and whether they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvdtrain.scaling.advise import Gate


@dataclass(frozen=True)
class Limits:
    """What must hold, None for what need not: an efficiency, hours to finish in, and a cost to finish at."""

    min_efficiency: float | None = None
    deadline_h: float | None = None
    budget: float | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Figures:
    """What limits are held against, of a number of GPUs; no cost without a price."""

    gpus: int
    efficiency: float
    hours: float
    cost: float | None


def keeps(limits: Limits, one: Figures) -> bool:
    """Whether a number of GPUs keeps all limits."""
    return (limits.min_efficiency is None or one.efficiency >= limits.min_efficiency) and _is_done(
        limits, one
    )


def make_gates(limits: Limits, all_of_them: Sequence[Figures], last: Figures) -> tuple[Gate, ...]:
    """The gates of limits that were set.

    Args:
        limits: What must hold.
        all_of_them: Numbers of GPUs to choose from: deadline and budget must be kept, both, by one of them.
        last: The largest that was asked for, whose efficiency must hold.
    """
    gates = []
    if limits.min_efficiency is not None:
        found, limit = last.efficiency, limits.min_efficiency
        told = f"efficiency at {last.gpus} GPUs is {100 * found:.1f} %, the limit {100 * limit:.1f} %"
        gates.append(Gate("min_efficiency", limit, found, found >= limit, told))
    if limits.deadline_h is not None:
        shortest = min(one.hours for one in all_of_them)
        told = f"the shortest time is {shortest:.3g} h, the deadline {limits.deadline_h:g} h"
        gates.append(Gate("deadline_h", limits.deadline_h, shortest, shortest <= limits.deadline_h, told))
    costs = [one.cost for one in all_of_them if one.cost is not None]
    if limits.budget is not None and costs:
        told = f"the lowest cost is {min(costs):.4g}, the budget {limits.budget:g}"
        gates.append(Gate("budget", limits.budget, min(costs), min(costs) <= limits.budget, told))
    if all(gate.holds for gate in gates) and not any(_is_done(limits, one) for one in all_of_them):
        gates.append(Gate("both", 1, 0, False, "no number of GPUs keeps both the deadline and the budget"))
    return tuple(gates)


def _is_done(limits: Limits, one: Figures) -> bool:
    in_time = limits.deadline_h is None or one.hours <= limits.deadline_h
    return in_time and (limits.budget is None or (one.cost is not None and one.cost <= limits.budget))

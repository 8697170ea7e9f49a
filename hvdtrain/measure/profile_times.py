"""From the rows of all ranks to the times of a profile: what was waiting, what was the transfer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hvdtrain.measure.step_clock import COLUMNS, PARTS
from hvdtrain.scaling.profile import RankTimes, StepTimes

# Seconds of shape (steps, ranks, len(COLUMNS)).
Table = NDArray[np.float64]
_AT = {name: number for number, name in enumerate(COLUMNS)}


def table_of(rows: Sequence[Sequence[Sequence[float]]]) -> Table:
    """The table of what ``StepClock.rows`` gave on each rank; steps that not all ranks have are left out."""
    steps = min(map(len, rows))
    return (
        np.array([each[len(each) - steps :] for each in rows], dtype=np.float64)
        .reshape(len(rows), steps, len(COLUMNS))
        .swapaxes(0, 1)
    )


def waits(table: Table) -> NDArray[np.float64]:
    """Of each step and rank the part of its reduction in which another rank's gradients were not ready.

    All ranks leave a reduction together. Counted from there, the rank whose gradients are ready last is the
    one that the others wait for; a rank waits at most as long as its reduction takes.
    """
    ready = table[..., _AT["ready"]]
    late = ready.max(axis=1, keepdims=True) - ready
    waited: Table = np.clip(late, 0.0, np.maximum(0.0, table[..., _AT["reduction"]]))
    return waited


def rank_times(table: Table, hosts: Sequence[str]) -> tuple[RankTimes, ...]:
    """Means of each rank; its parts sum to its step exactly.

    Args:
        table: At least one step.
        hosts: By rank.
    """
    means = {name: table[..., at].mean(axis=0) for name, at in _AT.items()}
    waited = waits(table).mean(axis=0)
    work = sum(table[..., _AT[name]] for name in ("load", "forward", "backward", "optimizer"))
    spread = np.asarray(work).std(axis=0)
    ranks = []
    for rank, host in enumerate(hosts):
        parts = {name: max(0.0, float(means[name][rank])) for name in PARTS}
        wait_s = float(waited[rank])
        times = {
            "load_s": parts["load"],
            "forward_s": parts["forward"],
            "backward_s": parts["backward"],
            "exposed_s": max(0.0, parts["reduction"] - wait_s),
            "optimizer_s": parts["optimizer"],
            "wait_s": wait_s,
            "other_s": parts["other"],
        }
        step_s = sum(times.values())
        ranks.append(RankTimes(rank, host, **times, step_s=step_s, compute_std_s=float(spread[rank])))
    return tuple(ranks)


def step_times(table: Table) -> StepTimes:
    """Seconds of the slowest rank of each step."""
    steps = table[..., : len(PARTS)].sum(axis=2).max(axis=1)
    p95 = float(np.quantile(steps, 0.95))
    return StepTimes(
        float(steps.mean()), float(np.median(steps)), p95, float(steps.min()), float(steps.max())
    )

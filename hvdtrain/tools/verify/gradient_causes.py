"""Why reduced gradients differ although losses agree.

Let h_r be the gradient that rank r handed to the reduction and g the right one, the reference's. The
reduction gives the mean of the h_r. Four questions tell the causes apart: is the result a multiple of g; is
it the mean of the h_r; do the h_r stop at one norm, as clipped ones do; is g the h_r with other weights,
which sketches (``recorder.fold``) and least squares answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from hvdtrain.tools.verify.records import Record
from hvdtrain.train.recorder import fold

_FIT = 10  # times the tolerance: what a fit may leave over
# Two gradients of different samples have norms that agree so well only where something made them agree.
_PINNED = 2e-6
_FEWEST = 2  # equal norms that count as pinned

Told = tuple[str, str, str]  # cause, evidence, advice


def gradient_cause(step: int, reference: Record, other: Record, tolerance: float) -> Told | None:
    """Name, evidence and advice of the cause; None where none of these fits.

    Args:
        step: The first whose reduced gradients differ.
        reference: One run.
        other: The other run.
        tolerance: Of the comparison.
    """
    few, many = sorted((reference, other), key=lambda record: record.run.size)
    return (
        _multiple(step, few, many, _FIT * tolerance)
        or _altered(step, few, many, _FIT * tolerance)
        or _pinned(step, (few, many))
        or _weights(step, few, many, _FIT * tolerance)
    )


def _multiple(step: int, few: Record, many: Record, slack: float) -> Told | None:
    """Whether the gradients that differ are the right ones times one factor."""
    right, wrong = few.gradients(step), many.gradients(step)
    assert right is not None
    assert wrong is not None
    dots = {name: _dots(right[name], wrong[name]) for name in right}
    total = math.sqrt(sum(aa for aa, _, _ in dots.values()))
    # Of a gradient that is all rounding no factor can be told.
    dots = {name: values for name, values in dots.items() if values[0] > (1e-4 * total) ** 2}
    differ = {name: row for name, row in dots.items() if _differ(right[name], wrong[name], slack)}
    weight = sum(aa for aa, _, _ in differ.values())
    if not weight:
        return None
    factor = sum(ab for _, ab, _ in differ.values()) / weight
    for aa, ab, bb in differ.values():
        left = max(0.0, bb - 2 * factor * ab + factor**2 * aa)
        if left > slack**2 * max(bb, factor**2 * aa):
            return None
    which = "all parameters" if len(differ) == len(dots) else f"{len(differ)} of {len(dots)} parameters"
    size = many.run.size
    meaning = {
        round(size, 2): f", the number of ranks of {many.run.text}: a sum where a mean belongs",
        round(
            1 / size, 2
        ): f", one over the ranks of {many.run.text}: divided by their number once too often",
    }.get(round(factor, 2), "")
    return (
        "averaging",
        f"the gradients of {which} on {many.run.text} are those on {few.run.text} times {factor:.4g}"
        f"{meaning}",
        "something scales the loss or the gradients with the number of ranks, or averages a second time",
    )


def _differing(step: int, few: Record, many: Record, slack: float) -> list[int]:
    """Numbers of the parameters whose gradients differ.

    The others are left out of all sums: their size would hide that nothing explains these.
    """
    right, wrong = few.gradients(step), many.gradients(step)
    assert right is not None
    assert wrong is not None
    names = enumerate(many.parameters)
    return [number for number, name in names if _differ(right[name], wrong[name], slack)]


def _differ(a: torch.Tensor, b: torch.Tensor, slack: float) -> bool:
    aa, ab, bb = _dots(a, b)
    return aa - 2 * ab + bb > slack**2 * aa


def _dots(a: torch.Tensor, b: torch.Tensor) -> tuple[float, float, float]:
    mine, its = a.flatten().to(torch.float64), b.flatten().to(torch.float64)
    return float(mine @ mine), float(mine @ its), float(its @ its)


def _altered(step: int, few: Record, many: Record, slack: float) -> Told | None:
    """Whether the reduction gave something else than the mean of what the ranks handed to it."""
    local, wrong = many.tensors(step, "local"), many.gradients(step)
    if local is None or wrong is None:
        return None
    for number in _differing(step, few, many, slack):
        name = many.parameters[number]
        mean = local["folds"][:, number].mean(dim=0)
        if float((fold(wrong[name]) - mean).norm()) > slack * float(mean.norm()):
            return (
                "averaging",
                f"on {many.run.text} the reduced gradient of {name} is not the mean of those that the ranks' "
                "passes left",
                "something changes them between backward pass and reduction, or the engine reduces wrongly",
            )
    return None


def _weights(step: int, few: Record, many: Record, slack: float) -> Told | None:
    """Whether the ranks' gradients, with other weights than they got, make the right one."""
    local, right, wrong = many.tensors(step, "local"), few.gradients(step), many.gradients(step)
    if local is None or right is None or wrong is None or many.run.size < 2:
        return None
    # Those that agree would hide in their own size that the others are not told by any weights.
    differ = [
        number for number, name in enumerate(many.parameters) if _differ(right[name], wrong[name], slack)
    ]
    rows = local["folds"][:, differ].flatten(start_dim=1)
    held = [rank for rank, row in enumerate(rows) if row.any()]
    if not held:
        return None
    target = torch.stack([fold(right[many.parameters[number]]) for number in differ]).flatten()
    weights = torch.linalg.lstsq(rows[held].T, target.unsqueeze(1)).solution.squeeze(1)
    if float((rows[held].T @ weights - target).norm()) > slack * float(target.norm()):
        return None
    factors = [float(weight) * many.run.size for weight in weights]
    if all(math.isclose(factor, 1.0, rel_tol=slack) for factor in factors):
        return None
    counts = [many.step(step).counts[rank] for rank in held]
    mean = sum(counts) / many.run.size
    shown = ", ".join(f"{factor:.4g} (rank {rank})" for rank, factor in zip(held, factors, strict=True))
    if all(math.isclose(f, n / mean, rel_tol=slack) for f, n in zip(factors, counts, strict=True)):
        return (
            "averaging",
            f"ranks hold {', '.join(map(str, counts))} samples of step {step} and count alike: with each "
            f"rank's gradient times {shown} the mean is right",
            "weight each rank by its samples: the mean of the ranks' means is not the samples' mean",
        )
    return (
        "clipping",
        f"each rank has scaled its own gradient before the reduction: times {shown} their mean is that on "
        f"{few.run.text}",
        "clip after the reduction: gradients.clip_norm or clip_value in the job, not a hook of the model",
    )


def _pinned(step: int, records: tuple[Record, Record]) -> Told | None:
    """Whether norms of gradients before the reduction stop at one value, in different passes and steps."""
    found = [(len(series), *one) for record in records for one, series in _pins(step, record)]
    if not found:
        return None
    times, value, what, run, hooked = max(found)
    hook = f", on which the model has put a hook ({hooked} such parameters)" if hooked else ""
    return (
        "clipping",
        f"before the reduction {what}{hook} is at most {value:.6g}, and exactly that {times} times on {run}",
        "clip after the reduction: gradients.clip_norm or clip_value in the job, not a hook of the model",
    )


def _pins(step: int, record: Record) -> Iterator[tuple[tuple[float, str, str, int], list[float]]]:
    """(largest value, of what, where, hooked parameters) and the equal values of each quantity that stops."""
    tables = [record.tensors(number, "local") for number in range(1, step + 1)]
    local = [table for table in tables if table is not None]
    norms, largest = (torch.cat([table[kind] for table in local]) for kind in ("norms", "largest"))
    hooked = record.facts["hooked"]
    is_coarse = record.facts["precision"] != "fp32"  # elements of few bits are often equal
    columns = [("the norm of all gradients", norms.norm(dim=1), "")]
    for number, name in enumerate(record.parameters):
        columns.append((f"the norm of the gradient of {name}", norms[:, number], name))
        if not is_coarse:
            columns.append((f"the largest element of the gradient of {name}", largest[:, number], name))
    for what, values, name in columns:
        top = float(values.max())
        series = [value for value in values.tolist() if value > 0 and value >= top * (1 - _PINNED)]
        if len(series) >= _FEWEST:
            yield (top, what, record.run.text, len(hooked) if name in hooked else 0), series

"""What the predictions from measured throughputs amount to: how many GPUs, what limits, what would help."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hvdtrain.scaling import measured_model as model
from hvdtrain.scaling.advise import Gate
from hvdtrain.scaling.links import Link, delayed, ethernet, rdma
from hvdtrain.scaling.measured import Prediction, predict, swap
from hvdtrain.scaling.measured_fit import Fit, fit
from hvdtrain.scaling.measured_gates import Figures, keeps, make_gates
from hvdtrain.scaling.measured_input import Measured
from hvdtrain.scaling.network import named_level

_NO_LOSS = 0.07  # a smaller share of the step lost to scaling is no bottleneck
_MIN_GAIN = 0.01
_LEAST_EFFICIENCY = 0.5  # below it a sample costs more than twice what it cost
_CAUSES = {
    "data": "waits for its input",
    "straggler": "waits for the slowest rank",
    "latency": "is latency of the allreduce",
    "bandwidth": "moves gradients",
}


@dataclass(frozen=True)
class WhatIf:
    """A change, and what it does at the largest number of GPUs asked for."""

    change: str
    throughput: float
    gain: float


@dataclass(frozen=True)
class Answer:
    """All that ``advise --measured`` tells."""

    predictions: tuple[Prediction, ...]
    measured: tuple[Prediction, ...]
    recommended_gpus: int
    worth_it: bool
    bottleneck: str
    verdict: str
    what_if: tuple[WhatIf, ...]
    gates: tuple[Gate, ...]
    notes: tuple[str, ...]
    base_gpus: int
    left_out: int | None

    @property
    def is_refused(self) -> bool:
        """Whether a gate does not hold."""
        return not all(gate.holds for gate in self.gates)


def answer(measured: Measured) -> Answer:
    """Fits, predicts and judges."""
    fitted = fit(measured)
    told = {gpus: predict(fitted, gpus, measured.price, measured.samples) for gpus in _counts(measured)}
    most = measured.max_gpus or max(told)
    figures = {gpus: _figures(measured, fitted, one) for gpus, one in told.items() if gpus <= most}
    recommended = _recommend(measured, figures)
    beyond = max(fitted.rows) if max(measured.predict) > max(measured.rows) else fitted.base[0]
    last = told[max(measured.predict)]
    bottleneck = _bottleneck(fitted, measured, last)
    changes = tuple(_what_if(fitted, measured, last))
    shown = _as_measured(fitted, told)
    return Answer(
        tuple(told[gpus] for gpus in measured.predict),
        tuple(told[gpus] for gpus in measured.rows),
        recommended,
        recommended > beyond,
        bottleneck,
        _verdict(fitted, shown, (recommended, beyond, last.gpus), bottleneck, changes),
        changes,
        make_gates(measured.limits, list(figures.values()), figures[last.gpus]),
        fitted.notes,
        fitted.base[0],
        fitted.left_out,
    )


def _counts(measured: Measured) -> list[int]:
    """Measured, asked for, and the doublings between: a knee may lie where nobody asked."""
    last = max(measured.predict)
    first = min(measured.rows)
    doublings = [first * 2**i for i in range(40) if first * 2**i < last]
    return sorted({*measured.rows, *measured.predict, *doublings})


def _figures(measured: Measured, fitted: Fit, one: Prediction) -> Figures:
    """A measured row counts as measured, but for one that was left out."""
    gpus = one.gpus
    throughput = one.throughput if gpus == fitted.left_out else measured.rows.get(gpus, one.throughput)
    base_gpus, base = fitted.base
    hours = measured.samples / throughput / 3600
    efficiency = throughput / gpus / (base / base_gpus)
    return Figures(gpus, efficiency, hours, measured.cost(gpus, throughput))


def _recommend(measured: Measured, figures: Mapping[int, Figures]) -> int:
    """The knee: the largest throughput times efficiency (Kleinrock's power), of those that keep the limits.

    Each doubling must then give at least the square root of two.
    """
    first = min(*measured.rows, max(figures))
    larger = [one for one in figures.values() if one.gpus >= first]
    kept = [one for one in larger if keeps(measured.limits, one)]
    enough, allowed = (
        [one for one in some if one.efficiency >= _LEAST_EFFICIENCY] for some in (larger, kept)
    )
    if kept and not allowed:  # what keeps the limits is a waste, and there is nothing else
        return max(kept, key=lambda one: one.efficiency).gpus
    return max(allowed or enough or larger[:1], key=lambda one: one.gpus * one.efficiency**2).gpus


def _bottleneck(fitted: Fit, measured: Measured, last: Prediction) -> str:
    """What takes most of the efficiency at the largest number of GPUs asked for."""
    leaves = last.gpus > fitted.facts.gpus_per_node
    blind = len(measured.rows) == 1 and measured.network is None and measured.batch_per_gpu is None
    if (blind and leaves) or not fitted.is_explained:
        return "unknown"
    if 1 - last.efficiency < _NO_LOSS and sum(last.loss_shares.values()) < _NO_LOSS:
        return "none"
    if max(last.loss_shares.values()) <= 0:
        return "none"  # no more is lost than at the first row
    return max(last.loss_shares, key=lambda name: last.loss_shares[name])


def _what_if(fitted: Fit, measured: Measured, last: Prediction) -> Sequence[WhatIf]:
    """Changes ranked by gain, those that bring something."""
    facts, gpus = fitted.facts, last.gpus
    now = swap(fitted, facts, gpus)
    leaves = gpus > facts.gpus_per_node
    double = {model.SAMPLES: math.log(2), model.COMPUTE: math.log(2)}
    options: list[tuple[str, float]] = [
        ("twice the batch per GPU", swap(fitted, facts, gpus, double)),
        (
            f"accumulate over {2 * facts.accumulate} micro-batches",
            swap(fitted, replace(facts, accumulate=2 * facts.accumulate), gpus, double),
        ),
        ("an input pipeline twice as fast", swap(fitted, facts, gpus, {model.LOADER: math.log(2)})),
        ("twice the bandwidth inside a node", swap(fitted, facts, gpus, {model.INSIDE: math.log(2)})),
    ]
    if measured.bytes_per_param > 2:
        halved = replace(facts, gradient_bytes=facts.gradient_bytes / 2)
        options.append(("fp16 compression of gradients", swap(fitted, halved, gpus)))
    if leaves:
        options.append(
            ("twice the bandwidth between nodes", swap(fitted, facts, gpus, {model.BETWEEN: math.log(2)}))
        )
        faster = _other_transport(facts.between.link)
        if faster:
            other = swap(fitted, replace(facts, between=named_level(faster)), gpus)
            options.append((f"{faster.name} between nodes", other))
    gains = [WhatIf(change, last.throughput * value / now, value / now - 1) for change, value in options]
    return sorted((one for one in gains if one.gain >= _MIN_GAIN), key=lambda one: -one.gain)


def _other_transport(link: Link | None) -> Link | None:
    """RDMA where it is TCP by name; GPUs that reduce where CPUs do. The delay that was added stays."""
    if link is None or not link.is_told or link.inside:
        return None
    gbit = link.line_b_s * 8 / 1e9
    if not link.on_gpu:
        return delayed(ethernet(gbit), link.delay_s)
    return delayed(rdma(gbit), link.delay_s) if "(TCP)" in link.name else None


def _verdict(
    fitted: Fit,
    told: Mapping[int, Prediction],
    counts: tuple[int, int, int],
    bottleneck: str,
    changes: Sequence[WhatIf],
) -> str:
    recommended, beyond, most = counts
    best, last = told[recommended], told[most]
    share = getattr(last.parts, f"{bottleneck}_s") / last.parts.total_s if bottleneck in _CAUSES else 0.0
    parts = []
    if recommended > beyond:
        band = f"{_percent(best.efficiency_low)} to {_percent(best.efficiency_high)}"
        band = "measured" if recommended in fitted.rows else band
        against = f" against {_gpus(fitted.base[0])}" if recommended != fitted.base[0] else ""
        parts.append(
            f"Use {_gpus(recommended)}: {_percent(best.efficiency)} efficiency ({band}){against}, "
            f"{_against(best, told[beyond])}"
        )
    elif bottleneck == "data":
        parts.append("Do not scale out before the input pipeline is faster")
    else:
        parts.append(f"Stay at {_gpus(recommended)}")
    if last.gpus > recommended:
        parts.append(f"{_gpus(last.gpus)} would give {_against(last, best)}")
    if bottleneck in _CAUSES:
        place = _place(fitted, last) if bottleneck in ("latency", "bandwidth") else ""
        parts.append(f"at {_gpus(last.gpus)} {_percent(share)} of the step {_CAUSES[bottleneck]}{place}")
    elif bottleneck == "unknown":
        source = (
            "one row without network and batch" if fitted.is_explained else "rows that no mechanism explains"
        )
        parts.append(f"what limits cannot be told from {source}")
    if changes and bottleneck != "none" and fitted.is_explained:
        parts.append(f"{changes[0].change} would help most ({_percent(changes[0].gain)} more throughput)")
    if fitted.left_out is not None:
        parts.append(f"the row of {_gpus(fitted.left_out)} is left out, it contradicts the others")
    if fitted.is_odd:
        parts.append("the rows contradict what is possible, see the notes")
    return "; ".join(parts) + "."


def _as_measured(fitted: Fit, told: Mapping[int, Prediction]) -> dict[int, Prediction]:
    """The predictions, with rows as they are shown: as measured, but for one left out."""
    shown = dict(told)
    base_gpus, base = fitted.base
    for gpus, value in fitted.rows.items():
        share = value / gpus / (base / base_gpus)
        shown[gpus] = replace(told[gpus], throughput=value, efficiency=share)
    return shown


def _against(more: Prediction, fewer: Prediction) -> str:
    gain = more.throughput / fewer.throughput
    dearer = more.gpus / fewer.gpus / gain - 1
    cost = f"{_percent(abs(dearer))} {'more' if dearer >= 0 else 'less'} cost per sample"
    return f"{gain:.3g} times the throughput of {_gpus(fewer.gpus)} at {cost}"


def _place(fitted: Fit, last: Prediction) -> str:
    """Where gradients are slow: in the node, or between nodes."""
    facts = fitted.facts
    if last.gpus <= facts.gpus_per_node:
        return " inside the node"
    theta = fitted.estimated.theta
    inside = (
        model.allreduce_cost(facts, theta, facts.gpus_per_node).total_s if facts.gpus_per_node > 1 else 0.0
    )
    whole = model.allreduce_cost(facts, theta, last.gpus).total_s
    return " inside the node already" if inside > 0.7 * whole else " between nodes"


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"

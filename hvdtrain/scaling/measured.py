"""From throughputs that somebody measured to throughputs at other numbers of GPUs, each with a band."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hvdtrain.scaling import measured_model as model
from hvdtrain.scaling.estimation import quantiles
from hvdtrain.scaling.measured_fit import Fit
from hvdtrain.scaling.measured_model import Facts, StepParts

_QUANTILE = 0.10  # the band leaves out this much at each end
_NORMAL_QUANTILE = 1.2816
# What the model itself misses, as spreads of the logarithm: of any figure, of a lost share, of each doubling
# beyond the measured rows, of leaving the node where no row has.
_MISSED_BASE, _MISSED_OF_LOSS, _MISSED_OF_DOUBLING, _MISSED_OUTSIDE = 0.018, 0.15, 0.004, 0.02
_MAX_HALF_WIDTH = 0.15  # a wider band would say nothing
_MAX_EFFICIENCY = 1.03  # more than linear beyond this is no property of data-parallel training


@dataclass(frozen=True)
class Prediction:
    """A number of GPUs with its throughput in samples/s; efficiencies are relative to the first row."""

    gpus: int
    throughput: float
    efficiency: float
    efficiency_low: float
    efficiency_high: float
    step_time_s: float
    cost: float | None
    parts: StepParts
    loss_shares: Mapping[str, float]


def predict(fitted: Fit, gpus: int, price: float | None = None, samples: float = 1e6) -> Prediction:
    """Predicts a number of GPUs.

    Args:
        fitted: The bent model.
        gpus: Number of GPUs.
        price: Price of a GPU-hour, None for no cost.
        samples: Samples that the cost is of.
    """
    base_gpus, base_throughput = fitted.base
    linear = gpus / base_gpus * base_throughput
    seen = [(model.throughput(fitted.facts, one.theta, gpus) / linear, one.weight) for one in fitted.drawn]
    low, middle, high = quantiles(seen, (_QUANTILE, 0.5, 1 - _QUANTILE))
    top = math.inf if fitted.is_odd else _MAX_EFFICIENCY
    middle = min(middle, top)
    missed = _NORMAL_QUANTILE * middle * _missed(fitted, gpus, middle)
    low = max(middle - math.hypot(middle - low, missed), middle - _MAX_HALF_WIDTH, 0.1 * middle)
    high = min(middle + math.hypot(high - middle, missed), low + 2 * _MAX_HALF_WIDTH)
    high = max(middle, min(high, top + 0.01))
    throughput = middle * linear
    parts = model.step_parts(fitted.facts, fitted.estimated.theta, gpus)
    cost = None if price is None else price * gpus * samples / throughput / 3600
    per_step = math.exp(fitted.estimated.theta[model.SAMPLES])
    return Prediction(
        gpus, throughput, middle, low, high, gpus * per_step / throughput, cost, parts, _losses(fitted, parts)
    )


def _missed(fitted: Fit, gpus: int, efficiency: float) -> float:
    """Spread of the logarithm that the model's own faults add."""
    node = fitted.facts.gpus_per_node
    parts = (
        _MISSED_BASE,
        _MISSED_OF_LOSS * max(0.0, 1 - efficiency),
        _MISSED_OF_DOUBLING * max(0.0, math.log2(gpus / fitted.measured_to)),
        _MISSED_OUTSIDE if fitted.measured_to <= node < gpus else 0.0,
    )
    return math.hypot(*parts)


def swap(fitted: Fit, facts: Facts, gpus: int, shifts: Mapping[int, float] | None = None) -> float:
    """Throughput in samples/s if facts were others, or unknowns shifted; for what-if questions."""
    theta = list(fitted.estimated.theta)
    for index, shift in (shifts or {}).items():
        theta[index] += shift
    return model.throughput(facts, theta, gpus)


def _losses(fitted: Fit, parts: StepParts) -> dict[str, float]:
    """Shares of the step that are no compute, beyond those of the first measured row."""
    first = model.step_parts(fitted.facts, fitted.estimated.theta, fitted.base[0])
    return {
        name: getattr(parts, f"{name}_s") / parts.total_s - getattr(first, f"{name}_s") / first.total_s
        for name in ("data", "straggler", "latency", "bandwidth")
    }

"""From throughputs that somebody measured to throughputs at other numbers of GPUs, each with a band."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hvdtrain.scaling import measured_model as model
from hvdtrain.scaling.drawing import densest, quantiles
from hvdtrain.scaling.measured_fit import Fit
from hvdtrain.scaling.measured_model import Facts, StepParts

_QUANTILE = 0.10  # the band leaves out this much at each end
_NORMAL_QUANTILE = 1.2816
# What the model itself misses, as spreads of the logarithm: of any figure, of a lost share, of each doubling
# beyond the measured rows, of leaving the node where no row has.
_MISSED_BELOW, _MISSED_ABOVE = 0.085, 0.018
_MISSED_OF_LOSS, _MISSED_OF_DOUBLING, _MISSED_OUTSIDE = 0.15, 0.004, 0.02
_MAX_HALF_WIDTH = 0.15  # a wider band would say nothing
_MARGIN = 0.05  # between a prediction and the end of a band that was cut
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
    # With fewer GPUs than the row that all is relative to, less is lost: more than 100 % is what is expected.
    top = math.inf if fitted.is_odd or gpus < base_gpus else _MAX_EFFICIENCY
    low, middle, high = _band(fitted, gpus, seen, top)
    throughput = middle * linear
    parts = model.step_parts(fitted.facts, fitted.estimated.theta, gpus)
    cost = None if price is None else price * gpus * samples / throughput / 3600
    per_step = math.exp(fitted.estimated.theta[model.SAMPLES])
    return Prediction(
        gpus, throughput, middle, low, high, gpus * per_step / throughput, cost, parts, _losses(fitted, parts)
    )


def _band(
    fitted: Fit, gpus: int, seen: Sequence[tuple[float, float]], top: float
) -> tuple[float, float, float]:
    """Low end, prediction and high end, from what the draws say and what the model misses."""
    low, middle, high = (min(one, top) for one in quantiles(seen, (_QUANTILE, 0.5, 1 - _QUANTILE)))
    below, above = _missed(fitted, gpus, middle)
    low = middle - math.hypot(middle - low, _NORMAL_QUANTILE * middle * below)
    high = min(middle + math.hypot(high - middle, _NORMAL_QUANTILE * middle * above), top + 0.01)
    scale = max(1.0, middle)  # above 100 % the same share of the prediction says something
    width, margin = 2 * _MAX_HALF_WIDTH * scale, _MARGIN * scale
    if high - low > width:
        # Too wide to say something: the part around the prediction that holds the most.
        low, high = max(low, middle - width + margin), min(high, middle + width - margin)
        if high - low > width:
            low, high = densest(seen, width, (low, high))
    return max(low, 0.1 * middle), middle, high


def _missed(fitted: Fit, gpus: int, efficiency: float) -> tuple[float, float]:
    """Spreads of the logarithm, below and above, that the model's own faults add.

    Below they are larger: a job loses to causes that the model does not have, and nothing makes it faster.
    """
    node = fitted.facts.gpus_per_node
    parts = (
        _MISSED_OF_LOSS * max(0.0, 1 - efficiency),
        _MISSED_OF_DOUBLING * max(0.0, math.log2(gpus / fitted.measured_to)),
        _MISSED_OUTSIDE if fitted.measured_to <= node < gpus else 0.0,
        fitted.noise,
    )
    rest = math.hypot(*parts)
    below = _MISSED_BELOW if len(fitted.rows) == 1 else _MISSED_ABOVE
    return math.hypot(rest, below), math.hypot(rest, _MISSED_ABOVE)


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

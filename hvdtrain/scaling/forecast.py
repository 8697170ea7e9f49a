"""A profiled job at 1, 2, 4 ... N GPUs: step, rate, efficiency, time and cost to finish, each with a band."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hvdtrain.scaling.calibration_unknowns import (
    FIGURE_ERROR,
    PRIOR,
    Belief,
    changes,
    lengthened,
    moved,
    step_with,
)
from hvdtrain.scaling.job import Job
from hvdtrain.scaling.network import Network
from hvdtrain.scaling.statistics import cost_to_target
from hvdtrain.scaling.step import Step, step_time

BAND = 1.2816  # standard deviations: four of five measured values lie inside
_JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Work:
    """What is to be done: how many steps of which global batch, and the critical batch where it is known."""

    steps: float
    global_batch: float
    critical_batch: float | None

    def steps_with(self, batch: float) -> float:
        """Steps to the same target with another global batch.

        S(B) = S_0 (1 + B_crit/B)/(1 + B_crit/B_0); without a critical batch the samples are taken to stay the
        same, which is the best that a larger batch can do.
        """
        if self.critical_batch is None:
            return self.steps * self.global_batch / batch
        crit = self.critical_batch
        return self.steps * (1 + crit / batch) / (1 + crit / self.global_batch)


@dataclass(frozen=True)
class Prices:
    """Price of a GPU-hour and of a kilowatt-hour; None where not told. ``power_w`` is a GPU's."""

    gpu_hour: float | None = None
    kwh: float | None = None
    power_w: float | None = None

    def cost(self, gpus: int, time_s: float) -> float | None:
        """What so many GPUs cost for so long."""
        if self.gpu_hour is None and (self.kwh is None or self.power_w is None):
            return None
        rent = cost_to_target(gpus, self.gpu_hour or 0.0, time_s)
        return rent + gpus * (self.power_w or 0.0) * time_s / _JOULES_PER_KWH * (self.kwh or 0.0)


@dataclass(frozen=True)
class Band:
    """A figure and the band around it."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Band:
        """The band times a known factor."""
        return Band(factor * self.value, factor * self.low, factor * self.high)


@dataclass(frozen=True)
class Row:
    """A number of GPUs.

    Efficiency is relative to one GPU; effective efficiency counts the samples that a larger batch wastes too.
    Times in seconds; ``time_s`` and ``cost`` to finish, None where steps or prices are not known.
    """

    gpus: int
    nodes: int
    step: Step
    step_s: Band
    samples_per_s: Band
    efficiency: Band
    global_batch: float
    steps: float | None
    extra_samples: float
    time_s: Band | None
    cost: Band | None
    energy_kwh: float | None
    effective_efficiency: float


@dataclass(frozen=True)
class Forecast:
    """The rows, and what they are made from."""

    job: Job
    network: Network
    work: Work | None
    prices: Prices
    rows: tuple[Row, ...]

    def at(self, gpus: int) -> Row:
        """The row of so many GPUs."""
        return next(row for row in self.rows if row.gpus == gpus)


def counts_up_to(last: int, gpus_per_node: int) -> list[int]:
    """1, 2, 4 ... and the last; also a full node, where that is no power of two."""
    powers = [2**i for i in range(last.bit_length())]
    node = [gpus_per_node] if gpus_per_node < last else []
    return sorted({*(count for count in powers if count < last), *node, last})


def make_forecast(
    job: Job,
    network: Network,
    counts: list[int],
    work: Work | None = None,
    prices: Prices | None = None,
    belief: Belief = PRIOR,
) -> Forecast:
    """The rows of ``counts`` GPUs, ascending, with what is believed of the unknowns."""
    paid = prices or Prices()
    steps = _steps(job, network, counts, belief)
    rows = tuple(
        _row(
            (job, network),
            step,
            belief.variance(changes(job, network, step.ranks, belief.mean)),
            (work, paid),
        )
        for step in steps
    )
    return Forecast(job, network, work, paid, rows)


def _steps(job: Job, network: Network, counts: list[int], belief: Belief) -> list[Step]:
    """The step of each number of GPUs: what the model misses makes none shorter than of fewer GPUs.

    A growth that was measured to be smaller than the model's is of the runs' ranks; beyond them it cannot
    make more ranks wait less for each other, unless the model itself says so.
    """
    done: list[tuple[float, Step]] = []
    for gpus in counts:
        model_s = step_time(*moved(job, network, belief.mean), gpus)
        step = step_with(job, network, gpus, belief.mean)
        least_s = max((one.total_s for before_s, one in done if before_s <= model_s), default=0.0)
        done.append((model_s, lengthened(step, least_s)))
    return [step for _, step in done]


def efficiency_band(alone_s: float, step_s: Band) -> Band:
    """Of a step against that of one GPU; more than linear is in no band, unless it is what is expected."""
    kept = alone_s / step_s.value
    return Band(kept, alone_s / step_s.high, max(kept, min(1.0, alone_s / step_s.low)))


def step_band(step_s: float, variance: float) -> Band:
    """Around a step whose logarithm is known to this variance, and to what the model misses of any figure."""
    spread = BAND * math.sqrt(variance + FIGURE_ERROR**2)
    return Band(step_s, step_s * math.exp(-spread), step_s * math.exp(spread))


def _row(machine: tuple[Job, Network], step: Step, variance: float, rest: tuple[Work | None, Prices]) -> Row:
    (job, network), (work, prices), gpus = machine, rest, step.ranks
    step_s = step_band(step.total_s, variance)
    batch = gpus * job.samples
    rate = Band(batch / step_s.value, batch / step_s.high, batch / step_s.low)
    # The step of one GPU was measured: its own error cancels in the ratio, but for what was not measured.
    efficiency = efficiency_band(step_time(job, network, 1), step_s)
    if gpus == 1:
        efficiency = Band(1.0, 1.0, 1.0)
    steps = work.steps_with(batch) if work else None
    wasted = 0.0
    if work and work.critical_batch:
        wasted = work.steps_with(batch) * batch / (work.steps_with(job.samples) * job.samples) - 1
    time = step_s.scaled(steps) if steps is not None else None
    costs = [prices.cost(gpus, one) for one in (time.value, time.low, time.high)] if time else [None]
    cost = Band(*(one for one in costs if one is not None)) if None not in costs else None
    energy = gpus * prices.power_w * time.value / _JOULES_PER_KWH if prices.power_w and time else None
    useful = efficiency.value / (1 + wasted)
    return Row(
        gpus,
        network.nodes(gpus),
        step,
        step_s,
        rate,
        efficiency,
        batch,
        steps,
        wasted,
        time,
        cost,
        energy,
        useful,
    )

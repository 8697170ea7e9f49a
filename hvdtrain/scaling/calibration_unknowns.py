"""What a prediction does not know, and what is believed of it: the terms that its band is made of.

The logarithm of a step's time at p ranks is taken to be

    log t(p) = log t_model(p; links, stragglers, contention) + a lost(p) + b log2(p) + e

with ``lost`` the share of the step that is no work of one rank. Each unknown is counted in standard
deviations of what is believed before any calibration run: the links' speeds (their own spread), the ranks'
noise, the contention beside a reduction, and a and b, what the model misses of the lost share and of each
doubling. e is what it misses of any figure, anew in each. To first order the step's variance is then
h' C h + e^2, with h the change of log t for one standard deviation of each unknown and C their covariance;
C = 1 before any run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hvdtrain.scaling.job import Job
from hvdtrain.scaling.network import Level, Network
from hvdtrain.scaling.step import Step, step_at, step_time

UNKNOWNS = (
    "link inside a node",
    "link between nodes",
    "stragglers",
    "contention",
    "losses the model misses",
    "growth the model misses",
)
INSIDE, BETWEEN, STRAGGLERS, CONTENTION, LOSSES, GROWTH = range(len(UNKNOWNS))
JITTER_SPREAD = 0.4  # of the logarithm of the ranks' noise, which few steps tell badly
CONTENTION_SPREAD = 0.7
MISSED_OF_LOSS, MISSED_OF_DOUBLING = 0.08, 0.01
FIGURE_ERROR = 0.02  # what the model misses of any figure, as a share of the step

Vector = tuple[float, ...]


def _unit(at: int) -> Vector:
    return tuple(1.0 if i == at else 0.0 for i in range(len(UNKNOWNS)))


@dataclass(frozen=True)
class Belief:
    """Mean and covariance of the unknowns, both in standard deviations of what is believed before any run."""

    mean: Vector = (0.0,) * len(UNKNOWNS)
    covariance: tuple[Vector, ...] = tuple(_unit(at) for at in range(len(UNKNOWNS)))

    def variance(self, change: Sequence[float]) -> float:
        """Variance of what changes by ``change`` for one standard deviation of each unknown."""
        rows = zip(change, self.covariance, strict=True)
        return max(0.0, sum(a * sum(x * y for x, y in zip(row, change, strict=True)) for a, row in rows))

    def parts(self, change: Sequence[float]) -> Vector:
        """The variance by unknown, a covariance counted half to each of its two; they sum to it."""
        rows = zip(change, self.covariance, strict=True)
        return tuple(a * sum(x * y for x, y in zip(row, change, strict=True)) for a, row in rows)

    def without_links(self) -> Belief:
        """What is believed where another network is asked about: of its links nothing more is known."""
        links = (INSIDE, BETWEEN)
        mean = tuple(0.0 if i in links else one for i, one in enumerate(self.mean))
        covariance = tuple(
            _unit(i) if i in links else tuple(0.0 if j in links else one for j, one in enumerate(row))
            for i, row in enumerate(self.covariance)
        )
        return Belief(mean, covariance)


PRIOR = Belief()


def moved(job: Job, network: Network, shift: Sequence[float]) -> tuple[Job, Network]:
    """Job and network with links, stragglers and contention moved by so many of their standard deviations."""
    noise = math.exp(shift[STRAGGLERS] * JITTER_SPREAD)
    beside = math.exp(shift[CONTENTION] * CONTENTION_SPREAD)
    tail = job.tail.scaled(noise) if job.tail else None
    return (
        replace(job, jitter_s=noise * job.jitter_s, tail=tail, contention=beside * job.contention),
        replace(
            network,
            inside=_faster(network.inside, shift[INSIDE]),
            between=_faster(network.between, shift[BETWEEN]),
        ),
    )


def _faster(level: Level, shift: float) -> Level:
    factor = math.exp(shift * level.spread)
    wire = replace(level.wire, alpha_s=level.wire.alpha_s / factor, beta_s=level.wire.beta_s / factor)
    return replace(level, wire=wire)


def changes(job: Job, network: Network, ranks: int, shift: Sequence[float] = PRIOR.mean) -> Vector:
    """Change of the step's logarithm for one standard deviation of each unknown, from ``shift`` on.

    Half the difference of one up and one down, since the model has kinks.
    """
    found = [0.0] * len(UNKNOWNS)
    for at in mattering(job, network, ranks):
        up, down = (step_time(*moved(job, network, _shifted(shift, at, sign)), ranks) for sign in (1.0, -1.0))
        found[at] = math.log(up / down) / 2
    here, there = moved(job, network, shift)
    lost = 1 - step_time(job, network, 1) / step_time(here, there, ranks)
    found[LOSSES], found[GROWTH] = MISSED_OF_LOSS * max(0.0, lost), MISSED_OF_DOUBLING * math.log2(ranks)
    return tuple(found)


def mattering(job: Job, network: Network, ranks: int) -> tuple[int, ...]:
    """The unknowns of the model itself that the step of so many ranks depends on at all."""
    if ranks == 1:
        return ()
    nodes, on_node = network.nodes(ranks), min(ranks, network.gpus_per_node)
    facts = {
        INSIDE: on_node > 1,
        BETWEEN: nodes > 1,
        STRAGGLERS: bool(job.jitter_s or job.tail),
        CONTENTION: job.contention > 0,
    }
    return tuple(at for at, matters in facts.items() if matters)


def _shifted(shift: Sequence[float], at: int, by: float) -> list[float]:
    return [one + by if i == at else one for i, one in enumerate(shift)]


def step_with(job: Job, network: Network, ranks: int, shift: Sequence[float]) -> Step:
    """The step by cause: what the model misses is shared among the causes as it has them.

    Where it has none, it is taken as a latency, as what a reduction takes beyond the model is. No step is
    shorter than that of one rank alone.
    """
    step = step_at(*moved(job, network, shift), ranks)
    added = sum(step.added_s.values())
    more = step.total_s * math.expm1(missed(added / step.total_s, ranks, shift))
    return _with(step, more) if more else step


def lengthened(step: Step, least_s: float) -> Step:
    """The step, or one of ``least_s`` where that is longer."""
    return _with(step, least_s - step.total_s) if step.total_s < least_s else step


def _with(step: Step, more_s: float) -> Step:
    added = sum(step.added_s.values())
    if added > 0:
        factor = max(0.0, 1 + more_s / added)
        return replace(step, added_s={cause: factor * value for cause, value in step.added_s.items()})
    return replace(step, added_s={**step.added_s, "latency": max(0.0, more_s)})


def missed(lost: float, ranks: int, shift: Sequence[float]) -> float:
    """What the model is believed to miss of the step's logarithm, where so much of the step is lost."""
    of_loss = shift[LOSSES] * MISSED_OF_LOSS * max(0.0, lost)
    return of_loss + shift[GROWTH] * MISSED_OF_DOUBLING * math.log2(ranks)

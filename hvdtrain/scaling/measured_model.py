"""The step of a job of which only throughputs are known: a mechanism with few constants, each with a prior.

One step of p ranks on M nodes takes::

    t(p) = load(C S(p), p) + exposed(T(p))
    S(p)  = 1 + s_i E[max of min(p, g)] + s_e E[max of M]           stragglers in and between nodes
    T(p)  = the slower of the ring inside a node and the one between nodes, over the gradient's bytes; the
    bandwidth
            between nodes shrinks as (2/M)^d
    exposed = softmax(c T, T - W),  W = 2/3 of the last micro-batch's time   overlap with backward
    load(t, p) = softmax(t, samples of a node / R)                    the node's input pipeline

C is the compute of a step, c the share of an overlapped allreduce that slows the arithmetic beside it, R what
a node's input pipeline delivers, s the spread of ranks, d the congestion. The unknowns are estimated from the
measured rows; what the rows do not tell stays at its prior, and its spread goes into the band.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hvdtrain.scaling.collectives import Cost, cheapest
from hvdtrain.scaling.links import Link
from hvdtrain.scaling.straggling import excess_of_max, smooth_max

_FUSED_BYTES = 64 * 2**20  # the default fusion buffer of Horovod
_BACKWARD_SHARE = 2 / 3  # backward takes twice the arithmetic of forward
_LAST_BUCKET_BYTES = 2**20  # what is still to be sent when backward has ended
_LOADER_POWER = 4.0


@dataclass(frozen=True)
class Facts:
    """What is known of a measured job.

    Attributes:
        gradient_bytes: Bytes that each rank reduces in a step.
        gpus_per_node: Ranks of a full node.
        inside: Link inside a node.
        between: Link of a node to the others.
        samples_per_step: Samples of one rank in a step (batch per GPU times accumulation), None if not told.
        accumulate: Micro-batches a step.
    """

    gradient_bytes: float
    gpus_per_node: int
    inside: Link
    between: Link
    samples_per_step: float | None
    accumulate: int = 1


# What the unknowns are called, in the order of the vector. All are logarithms.
NAMES = (
    "samples",
    "compute",
    "inside",
    "between",
    "contention",
    "straggle_in",
    "straggle_out",
    "congestion",
    "loader",
)
SAMPLES, COMPUTE, INSIDE, BETWEEN, CONTENTION, _, _, CONGESTION, LOADER = range(9)

# Median and scale of the logarithm. They are broad on purpose: what published runs of many sites have, not
# what one site has.
PRIOR_STEP_S, PRIOR_STEP_SPREAD = 0.3, 0.6
_CONTENTION = (0.20, 0.5)
_CONTENTION_CPU = (0.05, 0.7)  # CPUs reduce and send: the GPU's arithmetic hardly notices
_SPREAD_INSIDE = (0.021, 0.6)
_SPREAD_BETWEEN = (0.014, 0.7)
_CONGESTION = (0.06, 0.8)
_LOADER_PER_S = (24_000.0, 0.6)  # decoded images a second of a node
_TOKENS_PER_S = 4_000.0  # above this rate per GPU a sample is no image
_MIN_STEP_S = 2e-3


@dataclass(frozen=True)
class Prior:
    """Median and scale of each unknown's logarithm."""

    centre: tuple[float, ...]
    spread: tuple[float, ...]


def is_plausible(samples_per_step: float, rate_per_gpu: float) -> bool:
    """Whether a batch and a rate make a step that a GPU can take: else they count in different units."""
    return samples_per_step / rate_per_gpu >= _MIN_STEP_S


def make_prior(facts: Facts, rate_per_gpu: float) -> Prior:
    """The prior of a job whose ranks reach about ``rate_per_gpu`` samples a second each."""
    samples = facts.samples_per_step or rate_per_gpu * PRIOR_STEP_S
    loader = _LOADER_PER_S
    if rate_per_gpu > _TOKENS_PER_S:
        loader = (50 * rate_per_gpu * facts.gpus_per_node, 1.0)
    pairs = (
        (samples, 0.0 if facts.samples_per_step else PRIOR_STEP_SPREAD),
        (samples / rate_per_gpu, 2.0),
        (1.0, facts.inside.spread),
        (1.0, facts.between.spread),
        _CONTENTION if facts.between.on_gpu else _CONTENTION_CPU,
        _SPREAD_INSIDE,
        _SPREAD_BETWEEN,
        _CONGESTION,
        loader,
    )
    return Prior(tuple(math.log(value) for value, _ in pairs), tuple(spread for _, spread in pairs))


@dataclass(frozen=True)
class StepParts:
    """A step in seconds, in parts that sum to it."""

    compute_s: float
    data_s: float
    straggler_s: float
    latency_s: float
    bandwidth_s: float

    @property
    def total_s(self) -> float:
        """The whole step."""
        return self.compute_s + self.data_s + self.straggler_s + self.latency_s + self.bandwidth_s


def step_parts(facts: Facts, theta: Sequence[float], ranks: int) -> StepParts:
    """The step of ``ranks`` ranks, for unknowns ``theta`` in the order of ``NAMES``."""
    samples, compute, _, _, contention, spread_i, spread_e, _, loader = (math.exp(one) for one in theta)
    in_node, nodes = min(ranks, facts.gpus_per_node), math.ceil(ranks / facts.gpus_per_node)
    slowed = spread_i * excess_of_max(in_node) + spread_e * excess_of_max(nodes)
    busy = compute * (1 + slowed)
    data = smooth_max(busy, in_node * samples / loader, _LOADER_POWER) - busy
    cost = allreduce_cost(facts, theta, ranks)
    window = _BACKWARD_SHARE * compute / facts.accumulate
    tail = min(1.0, _LAST_BUCKET_BYTES / facts.gradient_bytes) * cost.total_s
    exposed = smooth_max(contention * cost.total_s, max(0.0, cost.total_s - window, tail))
    exposed = min(exposed, cost.total_s)
    share = exposed / cost.total_s if cost.total_s > 0 else 0.0
    return StepParts(compute, data, compute * slowed, share * cost.latency_s, share * cost.transfer_s)


def allreduce_cost(facts: Facts, theta: Sequence[float], ranks: int) -> Cost:
    """All fused buffers of a step; in and between nodes one pipelined ring, as slow as its slowest link."""
    if ranks == 1:
        return Cost(0.0, 0.0)
    buffers = max(1, round(facts.gradient_bytes / _FUSED_BYTES))
    each = facts.gradient_bytes / buffers
    in_node, nodes = min(ranks, facts.gpus_per_node), math.ceil(ranks / facts.gpus_per_node)
    costs = []
    if in_node > 1:
        costs.append(_scaled(cheapest(each, ranks, facts.inside.wire)[1], math.exp(theta[INSIDE])))
    if nodes > 1:
        between = cheapest(each, nodes, facts.between.wire)[1]
        # The ring runs through all ranks: the NIC carries the bytes of p of them, not of M nodes.
        whole = cheapest(each, ranks, facts.between.wire)[1]
        speed = math.exp(theta[BETWEEN]) * (2 / nodes) ** math.exp(theta[CONGESTION])
        costs.append(_scaled(Cost(between.latency_s, whole.transfer_s), speed))
    slowest = max(costs, key=lambda cost: cost.transfer_s)
    latency = sum(cost.latency_s for cost in costs)
    return Cost(buffers * latency, buffers * slowest.transfer_s)


def throughput(facts: Facts, theta: Sequence[float], ranks: int) -> float:
    """Samples a second of all ranks."""
    return ranks * math.exp(theta[SAMPLES]) / step_parts(facts, theta, ranks).total_s


def _scaled(cost: Cost, speed: float) -> Cost:
    return Cost(cost.latency_s, cost.transfer_s / speed)

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
from dataclasses import dataclass, replace

from hvdtrain.scaling.collectives import Cost
from hvdtrain.scaling.links import Link
from hvdtrain.scaling.network import Level
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
        inside: Level inside a node.
        between: Level of the nodes.
        samples_per_step: Samples of one rank in a step (batch per GPU times accumulation), None if not told.
        accumulate: Micro-batches a step.
    """

    gradient_bytes: float
    gpus_per_node: int
    inside: Level
    between: Level
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
USUAL_STEP_S, _STEP_SPREAD = 0.3, 0.6  # of a micro-batch
_CONTENTION = (0.20, 0.7)
_CONTENTION_CPU = (0.05, 0.7)  # CPUs reduce and send: the GPU's arithmetic hardly notices
_SPREAD_INSIDE = (0.021, 0.6)
_ANY_SPREAD_INSIDE = (0.03, 0.9)  # sequences differ in length; also where the unit of a rate is not known
_SPREAD_BETWEEN = (0.014, 0.7)
_CONGESTION = (0.06, 0.8)
_LOADER_PER_S = (24_000.0, 1.0)  # decoded images a second of a node
_TOKENS_PER_S = 4_000.0  # above this rate per GPU a sample is no image: it is a part of a sequence
_MIN_STEP_S = 2e-3


@dataclass(frozen=True)
class Prior:
    """Median and scale of each unknown's logarithm."""

    centre: tuple[float, ...]
    spread: tuple[float, ...]


def is_plausible(samples_per_step: float, rate_per_gpu: float) -> bool:
    """Whether a batch and a rate make a step that a GPU can take: else they count in different units."""
    return samples_per_step / rate_per_gpu >= _MIN_STEP_S


def fast_enough(link: Link, gradient_bytes: float, step_s: float) -> Link:
    """The prior of a network that nobody told, for a job whose micro-batch takes ``step_s`` seconds.

    Who trains on many nodes has a network for it: one on which a ring's bytes pass while backward runs.
    """
    needed = 2 * gradient_bytes / (_BACKWARD_SHARE * step_s)
    return replace(link, line_b_s=max(link.line_b_s, needed / link.reached))


def make_prior(facts: Facts, rate_per_gpu: float) -> Prior:
    """The prior of a job whose ranks reach about ``rate_per_gpu`` samples a second each."""
    samples = facts.samples_per_step or rate_per_gpu * facts.accumulate * USUAL_STEP_S
    loader, spread_inside = _LOADER_PER_S, _SPREAD_INSIDE
    if rate_per_gpu > _TOKENS_PER_S:
        loader = (50 * rate_per_gpu * facts.gpus_per_node, 1.0)
    if facts.samples_per_step is None or rate_per_gpu > _TOKENS_PER_S:
        spread_inside = _ANY_SPREAD_INSIDE
    pairs = (
        (samples, 0.0 if facts.samples_per_step else _STEP_SPREAD),
        (samples / rate_per_gpu, 2.0),
        (1.0, facts.inside.spread),
        (1.0, facts.between.spread),
        _CONTENTION if facts.between.on_gpu else _CONTENTION_CPU,
        spread_inside,
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
    inside = facts.inside.cost(each, in_node)
    between = facts.between.cost(each, nodes)
    latency = inside.latency_s + between.latency_s
    if in_node > 1 and nodes > 1:
        latency -= min(facts.inside.fixed_s, facts.between.fixed_s)  # the engine is asked once
    # The ring runs through all ranks: the NIC carries the bytes of p of them, not of M nodes.
    transfers = []
    if in_node > 1:
        transfers.append(facts.inside.cost(each, ranks).transfer_s / math.exp(theta[INSIDE]))
    if nodes > 1:
        speed = math.exp(theta[BETWEEN]) * (2 / nodes) ** math.exp(theta[CONGESTION])
        transfers.append(facts.between.cost(each, ranks).transfer_s / speed)
    return Cost(buffers * latency, buffers * max(transfers))


def throughput(facts: Facts, theta: Sequence[float], ranks: int) -> float:
    """Samples a second of all ranks."""
    return ranks * math.exp(theta[SAMPLES]) / step_parts(facts, theta, ranks).total_s

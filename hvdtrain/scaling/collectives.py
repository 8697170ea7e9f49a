"""What an allreduce costs, and the fit of its two constants to measured times.

The cost model is alpha-beta-gamma: ``alpha`` seconds a message, ``beta`` seconds a byte sent, ``gamma``
seconds a byte reduced (Thakur, Rabenseifner and Gropp 2005; Patarasuk and Yuan 2009). A size is in bytes, a
time in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from hvdtrain.errors import InputError

Point = tuple[float, float]  # bytes and seconds

_ROUNDS = 30
_MOST_SAMPLES = 60  # lines are tried through pairs of so many
_TINY = 1e-15
_NORMAL_QUARTILE = 1.15  # what three of four normal errors do not exceed, in standard deviations


@dataclass(frozen=True)
class Wire:
    """The constants of one level of the machine, as one rank sees it.

    Attributes:
        alpha_s: Seconds a message, whatever its size.
        beta_s: Seconds a byte; its inverse is the bus bandwidth in B/s.
        gamma_s: Seconds a byte that is reduced; 0 where the reduction hides behind the transfer, as on GPUs.
    """

    alpha_s: float
    beta_s: float
    gamma_s: float = 0.0


@dataclass(frozen=True)
class Cost:
    """An allreduce's time in its two parts: what does not depend on its size, and what does."""

    latency_s: float
    transfer_s: float

    @property
    def total_s(self) -> float:
        """Seconds in all."""
        return self.latency_s + self.transfer_s


def ring(num_bytes: float, ranks: int, wire: Wire) -> Cost:
    """2(p-1) alpha + 2((p-1)/p) m beta + ((p-1)/p) m gamma."""
    share = (ranks - 1) / ranks
    return Cost(2 * (ranks - 1) * wire.alpha_s, share * num_bytes * (2 * wire.beta_s + wire.gamma_s))


def recursive_doubling(num_bytes: float, ranks: int, wire: Wire) -> Cost:
    """log2(p) (alpha + m beta + m gamma), the rounds counted in full where p is no power of two."""
    rounds = _rounds(ranks)
    return Cost(rounds * wire.alpha_s, rounds * num_bytes * (wire.beta_s + wire.gamma_s))


def rabenseifner(num_bytes: float, ranks: int, wire: Wire) -> Cost:
    """2 log2(p) alpha + 2((p-1)/p) m beta + ((p-1)/p) m gamma."""
    share = (ranks - 1) / ranks
    return Cost(2 * _rounds(ranks) * wire.alpha_s, share * num_bytes * (2 * wire.beta_s + wire.gamma_s))


def double_tree(num_bytes: float, ranks: int, wire: Wire) -> Cost:
    """About 2 log2(p) alpha + 2 m beta: two pipelined trees, each with half of the bytes (as NCCL's)."""
    if ranks == 1:
        return Cost(0.0, 0.0)
    return Cost(2 * _rounds(ranks) * wire.alpha_s, num_bytes * (2 * wire.beta_s + wire.gamma_s))


CostOf = Callable[[float, int, Wire], Cost]  # of bytes, ranks and a wire
ALGORITHMS: dict[str, CostOf] = {
    "ring": ring,
    "recursive doubling": recursive_doubling,
    "rabenseifner": rabenseifner,
    "double tree": double_tree,
}


def hierarchical(num_bytes: float, gpus_per_node: int, nodes: int, inside: Wire, between: Wire) -> Cost:
    """Reduce-scatter inside each node, allreduce of the shards between nodes, allgather inside.

    2(g-1) alpha_i + 2((g-1)/g) m beta_i + 2(M-1) alpha_e + 2((M-1)/M) (m/g) beta_gpu, with beta_gpu = g
    beta_nic where g GPUs share a NIC.

    Args:
        num_bytes: Bytes of the buffer.
        gpus_per_node: Ranks of a node, g, all behind one NIC.
        nodes: Nodes, M.
        inside: A rank's link inside its node.
        between: The node's link to the others, beta of the whole NIC.
    """
    shared = Wire(between.alpha_s, gpus_per_node * between.beta_s, between.gamma_s)
    low = ring(num_bytes, gpus_per_node, inside)
    high = ring(num_bytes / gpus_per_node, nodes, shared)
    return Cost(low.latency_s + high.latency_s, low.transfer_s + high.transfer_s)


def cheapest(num_bytes: float, ranks: int, wire: Wire) -> tuple[str, Cost]:
    """The algorithm with the least time, and its cost; the first named wins a tie."""
    costs = {name: cost(num_bytes, ranks, wire) for name, cost in ALGORITHMS.items()}
    name = min(costs, key=lambda one: costs[one].total_s)
    return name, costs[name]


def bus_bandwidth(num_bytes: float, time_s: float, ranks: int) -> float:
    """Bus bandwidth of an allreduce in B/s, as nccl-tests defines it: (S/t) 2(n-1)/n."""
    return num_bytes / time_s * 2 * (ranks - 1) / ranks


@dataclass(frozen=True)
class WireFit:
    """A fitted wire, and the median of |measured / fitted - 1| over the samples."""

    wire: Wire
    residual: float


def fit_wire(samples: Sequence[Point], ranks: int, cost: CostOf = ring) -> WireFit:
    """Fits alpha and beta of an algorithm to measured allreduces.

    The line that three of four samples are nearest to, then least squares over the samples near it, all by
    relative error: one sample that is far off moves nothing. Both constants are held at zero or above. With
    a messages and v bytes on the critical path, t/a = alpha + beta v/a is that line.

    Args:
        samples: Pairs of bytes and seconds, of at least two different sizes.
        ranks: Ranks that took part, at least 2.
        cost: The algorithm's time, without gamma; at least one message.

    Raises:
        InputError: Too few sizes, or a time that is not positive.
    """
    if ranks < 2:
        raise InputError(f"an allreduce over {ranks} rank moves nothing to fit", legal="at least 2 ranks")
    if any(not (size > 0 and time > 0 and math.isfinite(time)) for size, time in samples):
        raise InputError("an allreduce's size and time must be positive numbers")
    points = sorted(samples)
    if len({size for size, _ in points}) < 2:
        raise InputError("alpha and beta need times of at least two sizes", do="measure more sizes")
    messages = [cost(size, ranks, Wire(1.0, 0.0)).total_s for size, _ in points]
    volumes = [cost(size, ranks, Wire(0.0, 1.0)).total_s for size, _ in points]
    scaled = [
        (volume / count, time / count)
        for count, volume, (_, time) in zip(messages, volumes, points, strict=True)
    ]
    alpha, beta = _robust_line(sorted(scaled))
    off = median(abs(time / max(alpha + beta * size, _TINY) - 1) for size, time in scaled)
    return WireFit(Wire(alpha, beta), off)


def _robust_line(points: Sequence[Point]) -> tuple[float, float]:
    """Intercept and slope, both at least 0, that most samples are near to."""
    base, slope = min(_lines(points), key=lambda line: _quartile(_errors(points, line)))
    for _ in range(_ROUNDS):
        errors = _errors(points, (base, slope))
        scale = max(_quartile(errors) / _NORMAL_QUARTILE, 1e-6)
        # Tukey's biweight: a sample beyond 4.7 scales has no weight at all.
        kept = [max(0.0, 1 - (error / (4.7 * scale)) ** 2) for error in errors]
        near = zip(kept, points, strict=True)
        roots = [weight / max(base + slope * size, _TINY) for weight, (size, _) in near]
        base, slope = _weighted_line(points, roots)
    return base, slope


def _lines(points: Sequence[Point]) -> list[tuple[float, float]]:
    """Lines through two samples, and flat and proportional ones through one."""
    stride = -(-len(points) // _MOST_SAMPLES)
    some = points[::stride]
    lines = [(time, 0.0) for _, time in some] + [(0.0, time / size) for size, time in some]
    for (small, early), (large, late) in combinations(some, 2):
        slope = (late - early) / (large - small) if large > small else -1.0
        base = early - slope * small
        if slope >= 0 and base >= 0:
            lines.append((base, slope))
    return lines


def _quartile(errors: Sequence[float]) -> float:
    """The error that three of four do not exceed. The median would agree with one half against the other.

    Of three samples all count: a line through any two of them would call the third an outlier.
    """
    return sorted(errors)[min(len(errors) - 1, max(2, int(0.75 * (len(errors) - 1))))]


def _errors(points: Sequence[Point], line: tuple[float, float]) -> list[float]:
    """|log(line / measured)| of each sample: twice too long is as wrong as half."""
    base, slope = line
    return [abs(math.log(max(base + slope * size, _TINY) / time)) for size, time in points]


def _weighted_line(points: Sequence[Point], roots: Sequence[float]) -> tuple[float, float]:
    weights = [root * root for root in roots]
    total = sum(weights)
    if total <= 0:
        return 0.0, 0.0
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    both = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True))
    slope = max(0.0, both / spread) if spread > 0 else 0.0
    base = mean_y - slope * mean_x
    if base >= 0:
        return base, slope
    squares = sum(w * x * x for w, (x, _) in zip(weights, points, strict=True))
    return 0.0, sum(w * x * y for w, (x, y) in zip(weights, points, strict=True)) / squares


def _rounds(ranks: int) -> int:
    return math.ceil(math.log2(ranks)) if ranks > 1 else 0

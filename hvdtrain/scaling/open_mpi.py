"""Open MPI's allreduce: which algorithm it takes for how many bytes and ranks, and what that costs.

Source: ``ompi/mca/coll/tuned/coll_tuned_decision_fixed.c`` of Open MPI 5.0 (the same numbers since 4.1), for
operations that commute, and ``ompi/mca/coll/base/coll_base_allreduce.c`` for what they do where ranks are no
power of two. Only what the launcher leaves active: without the collectives han and adapt.
"""

from __future__ import annotations

import math
from bisect import bisect_right

from hvdtrain.scaling.collectives import Cost, Wire, ring

_DOUBLING, _RING, _HALVING = "recursive doubling", "ring", "rabenseifner"
# Below so many ranks: from so many bytes on the algorithm. The segmented ring is a ring here: it is called
# without a size of segment. Above 64 ranks the table takes some others below a few KB, which no gradient is.
_RULES: tuple[tuple[float, tuple[tuple[int, str], ...]], ...] = (
    (
        4,
        (
            (0, _RING),
            (8, _DOUBLING),
            (4096, _RING),
            (8192, _DOUBLING),
            (16384, _RING),
            (262_144, _HALVING),
        ),
    ),
    (8, ((0, _RING), (16, _DOUBLING), (8192, _HALVING))),
    (16, ((0, _DOUBLING), (8192, _HALVING))),
    (32, ((0, _RING), (64, _DOUBLING), (4096, _HALVING))),
    (64, ((0, _RING), (128, _HALVING))),
    (128, ((0, _DOUBLING), (262_144, _HALVING))),
    (256, ((0, _DOUBLING), (262_144, _HALVING))),
    (math.inf, ((0, _DOUBLING), (16_384, _HALVING))),
)


def algorithm(num_bytes: float, ranks: int) -> str:
    """Which one it takes."""
    rules = next(rules for below, rules in _RULES if ranks < below)
    return rules[bisect_right([start for start, _ in rules], num_bytes) - 1][1]


def open_mpi(num_bytes: float, ranks: int, wire: Wire) -> Cost:
    """The time of its allreduce; see ``collectives`` for the terms."""
    if ranks == 1:
        return Cost(0.0, 0.0)
    name = algorithm(num_bytes, ranks)
    if name == _RING:
        return ring(num_bytes, ranks, wire)
    return (_doubling if name == _DOUBLING else _halving)(num_bytes, ranks, wire)


def _doubling(num_bytes: float, ranks: int, wire: Wire) -> Cost:
    """Recursive doubling among 2^k ranks; the others hand theirs over before it and get the sum after."""
    rounds = int(math.log2(ranks))
    extra = ranks > 2**rounds
    sent, added = rounds + 2 * extra, rounds + extra
    return Cost(sent * wire.alpha_s, num_bytes * (sent * wire.beta_s + added * wire.gamma_s))


def _halving(num_bytes: float, ranks: int, wire: Wire) -> Cost:
    """Rabenseifner's among 2^k ranks.

    Before it each of the others and its neighbour exchange halves, and the reduced half comes back to the
    neighbour; after it the whole sum goes to the other. With three ranks that is 3 m beta where a ring takes
    4/3 m beta.
    """
    rounds = int(math.log2(ranks))
    power = 2**rounds
    extra = ranks > power
    share = (power - 1) / power
    sent = 2 * share + 2 * extra
    added = share + extra / 2
    messages = 2 * rounds + 3 * extra
    return Cost(messages * wire.alpha_s, num_bytes * (sent * wire.beta_s + added * wire.gamma_s))

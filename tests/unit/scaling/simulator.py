"""A discrete-event simulator of a data-parallel step, written apart from the model: ranks, a wire, messages.

Every rank is a process with events of its own: its gradients become ready, an engine looks at cycles for what
all ranks have ready, fuses it, and sends it as a ring of messages, step by step along the slowest pair of
neighbours. It uses none of the model's formulas: time passes only by events.
"""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field


@dataclass
class World:
    """What is simulated. Times in seconds, sizes in bytes, ``speed`` in B/s of a pair of neighbours."""

    ranks: int
    forward_s: float
    gradients: list  # (bytes, seconds of backward until it is ready)
    backward_s: float
    optimizer_s: float
    delay_s: float
    speed: float
    fuse_bytes: float
    jitter_s: float = 0.0
    load_s: float = 0.0
    seed: int = 1
    events: list = field(default_factory=list)

    def run(self, steps=1):
        """Mean seconds of a step."""
        chance = random.Random(self.seed)
        return sum(self._step(chance) for _ in range(steps)) / steps

    def _step(self, chance):
        self.events, self.order = [], itertools.count()
        ready = [[None] * len(self.gradients) for _ in range(self.ranks)]
        late = [0.0] * self.ranks
        for rank in range(self.ranks):
            # The noise falls before backward: a rank that is late is late with all its gradients.
            late[rank] = chance.gauss(0, self.jitter_s) if self.jitter_s else 0.0
            begin = max(0.0, self.load_s + self.forward_s + late[rank])
            for i, (_, when) in enumerate(self.gradients):
                ready[rank][i] = begin + when
        for i in range(len(self.gradients)):
            self._at(max(rank[i] for rank in ready), ("ready", i))
        everywhere, sent, busy_until, end = [], 0, 0.0, 0.0
        while self.events:
            now, _, (kind, value) = heapq.heappop(self.events)
            if kind == "ready":
                everywhere.append(value)
            if kind == "sent":
                end = now
            # The engine's thread is free: it takes all that is ready everywhere, one
            # buffer after the other, and looks again when the last of them is sent.
            if now >= busy_until and sent < len(everywhere) and not self._due(now):
                busy_until = now + sum(map(self._ring, self._fused(everywhere[sent:])))
                sent = len(everywhere)
                self._at(busy_until, ("sent", sent))
        computed = max(
            max(0.0, self.load_s + self.forward_s + late[rank]) + self.backward_s
            for rank in range(self.ranks)
        )
        return max(computed, end) + self.optimizer_s

    def _fused(self, numbers):
        """Bytes of the buffers that these gradients make."""
        sizes = []
        for number in numbers:
            more = self.gradients[number][0]
            if sizes and sizes[-1] + more <= self.fuse_bytes:
                sizes[-1] += more
            else:
                sizes.append(more)
        return sizes

    def _ring(self, size):
        """Reduce-scatter, then allgather: each rank passes a chunk on as soon as it has it from its
        neighbour.
        """
        if self.ranks == 1:
            return 0.0
        chunk, clock = size / self.ranks, 0.0
        for _round in range(2 * (self.ranks - 1)):
            # All links work at once; in a ring of equal links a round ends everywhere at the same time.
            clock += self.delay_s + chunk / self.speed
        return clock

    def _due(self, now):
        return bool(self.events) and self.events[0][0] == now and self.events[0][2][0] == "ready"

    def _at(self, when, what):
        heapq.heappush(self.events, (when, next(self.order), what))

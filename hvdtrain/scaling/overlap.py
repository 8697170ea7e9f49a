"""How much of the gradients' reduction backward hides: fused buffers that are sent while it still computes.

Times are in seconds after backward began.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hvdtrain.scaling.collectives import Cost
from hvdtrain.scaling.profile import ReadyGradient

MIB = 2**20


@dataclass(frozen=True)
class Fusing:
    """How an engine makes buffers of gradients.

    Attributes:
        limit_bytes: A buffer's size at most (of a gradient that is larger, its own).
        cycle_s: How often the engine looks for ready gradients; a buffer waits half of it on average.
        as_ready: Whether a buffer takes what is ready when the last one has ended (Horovod), or the next
            gradients up to the limit whatever is ready (the buckets of torch DDP).
    """

    limit_bytes: float
    cycle_s: float = 0.0
    as_ready: bool = True


HOROVOD = Fusing(128 * MIB, 1e-3)
DDP = Fusing(25 * MIB, 0.0, as_ready=False)


@dataclass(frozen=True)
class Buffer:
    """Bytes that are reduced at once, and when the last of them is ready."""

    bytes: float
    ready_s: float


@dataclass(frozen=True)
class Overlap:
    """The reduction of a step: when it ended, its sums, and in how many buffers."""

    end_s: float
    latency_s: float
    transfer_s: float
    busy_before_s: float
    num_buffers: int


def walk(buffers: Sequence[Buffer], cost: Callable[[float], Cost], backward_s: float) -> Overlap:
    """Sends buffers in turn: start_i = max(ready_i, end_(i-1)), end_i = start_i + T(m_i).

    Args:
        buffers: In the order in which they are sent.
        cost: The time of an allreduce of so many bytes.
        backward_s: When backward ends, for ``busy_before_s``: the seconds of the reduction before it.
    """
    clock, latency, transfer, before = 0.0, 0.0, 0.0, 0.0
    for buffer in buffers:
        start, each = max(buffer.ready_s, clock), cost(buffer.bytes)
        clock = start + each.total_s
        latency, transfer = latency + each.latency_s, transfer + each.transfer_s
        before += max(0.0, min(clock, backward_s) - min(start, backward_s))
    return Overlap(clock, latency, transfer, before, len(buffers))


def send(
    gradients: Sequence[ReadyGradient], cost: Callable[[float], Cost], fusing: Fusing, backward_s: float
) -> Overlap:
    """Fuses and sends gradients, in the order in which they are ready."""
    if not fusing.as_ready:
        return walk(bucket(gradients, fusing.limit_bytes), cost, backward_s)
    buffers: list[Buffer] = []
    clock, i = 0.0, 0
    while i < len(gradients):
        start = max(clock, gradients[i].ready_s) + fusing.cycle_s / 2
        size, ready = 0.0, 0.0
        while i < len(gradients) and gradients[i].ready_s <= start:
            if size and size + gradients[i].bytes > fusing.limit_bytes:
                break
            size, ready, i = size + gradients[i].bytes, gradients[i].ready_s, i + 1
        buffers.append(Buffer(size, max(start, ready)))
        clock = start + cost(size).total_s
    return walk(buffers, cost, backward_s)


def bucket(gradients: Sequence[ReadyGradient], limit_bytes: float) -> list[Buffer]:
    """Buckets of up to ``limit_bytes``, each ready with its last gradient."""
    buffers: list[Buffer] = []
    size, ready = 0.0, 0.0
    for gradient in gradients:
        if size and size + gradient.bytes > limit_bytes:
            buffers.append(Buffer(size, ready))
            size = 0.0
        size, ready = size + gradient.bytes, gradient.ready_s
    return [*buffers, Buffer(size, ready)] if size else buffers


def exposed(overlap: Overlap, backward_s: float) -> float:
    """max(0, end_last - t_backward)."""
    return max(0.0, overlap.end_s - backward_s)

"""How much of the gradients' reduction backward hides: fused buffers that are sent while it still computes.

Times are in seconds after backward began.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean

from hvdtrain.scaling.collectives import Cost
from hvdtrain.scaling.profile import ReadyGradient

MIB = 2**20
_PHASES = (0.125, 0.375, 0.625, 0.875)
_MIDDLE = 0.5
_SPEEDS_B_S, _HALVINGS = (1e-2, 1e14), 60  # more than any network has on both sides


@dataclass(frozen=True)
class Fusing:
    """How an engine makes buffers of gradients.

    Attributes:
        limit_bytes: A buffer's size at most (of a gradient that is larger, its own).
        cycle_s: How often the engine looks for ready gradients, at most.
        as_ready: Whether a buffer takes what is ready when the last one has ended (Horovod), or the next
            gradients up to the limit whatever is ready (the buckets of torch DDP).
        negotiates: Whether the ranks agree in each cycle on what is ready on all of them.
        agree_s: What one such agreement takes.
    """

    limit_bytes: float
    cycle_s: float = 0.0
    as_ready: bool = True
    negotiates: bool = False
    agree_s: float = 0.0

    @property
    def period_s(self) -> float:
        """From one idle cycle to the next: a cycle does not end before the ranks have agreed."""
        return max(self.cycle_s, self.agree_s)


HOROVOD = Fusing(128 * MIB, 1e-3, negotiates=True)
DDP = Fusing(25 * MIB, 0.0, as_ready=False)


@dataclass(frozen=True)
class Buffer:
    """Bytes that are reduced at once, from when on they can be, and of how many gradients they are."""

    bytes: float
    ready_s: float
    num_tensors: int = 1


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
    gradients: Sequence[ReadyGradient],
    cost: Callable[[float], Cost],
    fusing: Fusing,
    backward_s: float,
    phase: float = _MIDDLE,
) -> Overlap:
    """Fuses and sends gradients, in the order in which they are ready.

    Args:
        gradients: In that order.
        cost: The time of an allreduce of so many bytes.
        fusing: The engine's.
        backward_s: When backward ends.
        phase: How much of an idle cycle is left when the first gradient is ready, from 0 to 1.
    """
    if not fusing.as_ready:
        return walk(bucket(gradients, fusing.limit_bytes), cost, backward_s)
    return walk(_cycles(gradients, cost, fusing, phase), cost, backward_s)


def _cycles(
    gradients: Sequence[ReadyGradient], cost: Callable[[float], Cost], fusing: Fusing, phase: float
) -> list[Buffer]:
    """The buffers of Horovod's background thread, each with the moment from which it can be sent.

    ``RunLoopOnce`` of Horovod 0.28.1 (``horovod/common/operations.cc``): it sleeps up to a cycle after the
    last one's begin, takes what its rank has enqueued by then, agrees with the other ranks on what all of
    them have (one small allreduce of bits, ``CacheCoordinator::sync``), also where nothing is enqueued, and
    reduces it. What comes later waits for the next cycle.
    """
    buffers: list[Buffer] = []
    period, i = fusing.period_s, 0
    begin = gradients[0].ready_s + phase * period if gradients else 0.0
    while i < len(gradients):
        if gradients[i].ready_s > begin:
            # Idle cycles follow one another, and the next gradient falls somewhere between two of them.
            idle = ceil((gradients[i].ready_s - begin) / period - 1e-9) if period else 0
            begin = begin + idle * period if period else gradients[i].ready_s
        clock = begin + fusing.agree_s
        while i < len(gradients) and gradients[i].ready_s <= begin:
            size, first = 0.0, i
            while i < len(gradients) and gradients[i].ready_s <= begin:
                if size and size + gradients[i].bytes > fusing.limit_bytes:
                    break
                size, i = size + gradients[i].bytes, i + 1
            buffers.append(Buffer(size, clock, i - first))
            clock += cost(size).total_s
        begin = max(clock, begin + fusing.cycle_s)
    return buffers


def bucket(gradients: Sequence[ReadyGradient], limit_bytes: float) -> list[Buffer]:
    """Buckets of up to ``limit_bytes``, each ready with its last gradient."""
    buffers: list[Buffer] = []
    size, ready, count = 0.0, 0.0, 0
    for gradient in gradients:
        if size and size + gradient.bytes > limit_bytes:
            buffers.append(Buffer(size, ready, count))
            size, count = 0.0, 0
        size, ready, count = size + gradient.bytes, gradient.ready_s, count + 1
    return [*buffers, Buffer(size, ready, count)] if size else buffers


def exposed(overlap: Overlap, backward_s: float) -> float:
    """max(0, end_last - t_backward)."""
    return max(0.0, overlap.end_s - backward_s)


def added_s(
    gradients: Sequence[ReadyGradient],
    cost: Callable[[float], Cost],
    fusing: Fusing,
    backward_s: float,
    contention: float,
) -> float:
    """Seconds that the reduction adds to a step: what is exposed, or what it slows down beside it.

    Where in a cycle backward begins is chance: the mean over some moments.
    """
    phases = _PHASES if fusing.as_ready and fusing.period_s else _PHASES[:1]
    overlaps = [send(gradients, cost, fusing, backward_s, phase) for phase in phases]
    # Backward that is slowed ends later, and hides that much more.
    return fmean(max(contention * one.busy_before_s, exposed(one, backward_s)) for one in overlaps)


def fused(
    gradients: Sequence[ReadyGradient], fusing: Fusing, backward_s: float, exposed_s: float
) -> list[Buffer]:
    """The buffers that an engine which takes what is ready makes of a step that was measured.

    How fast it reduces is not measured apart: it is taken to be so many bytes a second that the last buffer
    ends when the measured reduction ended.

    Args:
        gradients: In the order in which they were ready.
        fusing: The engine's.
        backward_s: When backward ended.
        exposed_s: How long the reduction went on after it.
    """
    slow, fast = _SPEEDS_B_S
    for _ in range(_HALVINGS):
        speed = (slow * fast) ** 0.5
        overlap = send(gradients, _at_speed(speed), fusing, backward_s)
        slow, fast = (slow, speed) if exposed(overlap, backward_s) < exposed_s else (speed, fast)
    return _cycles(gradients, _at_speed(fast), fusing, _MIDDLE)


def _at_speed(speed_b_s: float) -> Callable[[float], Cost]:
    return lambda num_bytes: Cost(0.0, num_bytes / speed_b_s)

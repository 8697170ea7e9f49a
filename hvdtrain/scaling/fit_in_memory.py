"""Whether a replica fits a GPU, and over how many its state would have to be sharded if it does not."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hvdtrain.scaling.profile import Profile

_FULL = 0.97  # of the device's memory: what the driver and fragments leave
_STATE_SHARE = 0.6  # of a GPU for sharded state, the rest for activations


@dataclass(frozen=True)
class Fitting:
    """Bytes of a replica's state (parameters, gradients, optimizer, buffers), of its peak and of the device.

    ``shards`` is the number of GPUs over which the state would have to be sharded; 1 where a replica fits.
    """

    state_bytes: int
    peak_bytes: int | None
    device_bytes: int | None
    fits: bool
    shards: int


def fitting_of(profile: Profile) -> Fitting:
    """Judges the profile's replica; where the device's memory is not known it is taken to fit."""
    memory = profile.memory
    state = memory.parameters_bytes + memory.gradients_bytes + memory.optimizer_bytes + memory.buffers_bytes
    device = profile.device_memory_bytes
    if device is None:
        return Fitting(state, memory.peak_bytes, None, True, 1)
    needed = max(state, memory.peak_bytes or 0)
    fits = needed <= _FULL * device
    shards = 1 if fits else max(2, math.ceil(state / (_STATE_SHARE * device)))
    return Fitting(state, memory.peak_bytes, device, fits, shards)

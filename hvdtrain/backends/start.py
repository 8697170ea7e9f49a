"""Brings the chosen engine up: the one place that turns a name into a Backend."""

from __future__ import annotations

from hvdtrain.backends.base import Backend, choose_device
from hvdtrain.backends.choose import build_fits_torch
from hvdtrain.topology.environ import World


def start_backend(name: str, world: World) -> Backend:
    """Starts an engine on this rank; collective.

    Args:
        name: ``horovod``, ``ddp`` or ``single``, as ``choose_backend`` gave it.
        world: Which rank this is.

    Raises:
        InputError: The engine cannot be loaded, or sees another number of ranks.
    """
    device = choose_device(world)
    if name == "single":
        from hvdtrain.backends.single import SingleBackend

        return SingleBackend(world, device)
    if name == "ddp":
        from hvdtrain.backends.ddp import DdpBackend

        return DdpBackend(world, device)
    try:
        from hvdtrain.backends.horovod import HorovodBackend
    except ImportError as error:
        raise build_fits_torch(error) from None
    return HorovodBackend(world, device)

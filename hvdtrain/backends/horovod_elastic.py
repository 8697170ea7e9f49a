"""Horovod Elastic: ranks that come and go while a training runs. The second file that imports Horovod.

Who is there is Horovod's business; what they know is kept by the caller. Horovod's own ``TorchState`` would
broadcast model and optimizer once more than ``Backend.distribute`` does.

Source: Horovod 0.28.1, ``common/elastic.py`` and ``runner/elastic/driver.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import horovod.torch as hvd
from horovod.common.elastic import State

from hvdtrain.topology.environ import World

Result = TypeVar("Result")


class _Members(State):  # type: ignore[misc]
    """Hears that hosts come and go; holds nothing that would have to be saved or sent."""

    def __init__(self) -> None:
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank)

    def save(self) -> None:
        """Nothing."""

    def restore(self) -> None:
        """Nothing."""

    def sync(self) -> None:
        """Nothing."""


def run_elastically(life: Callable[[Callable[[], None]], Result]) -> Result:
    """Calls ``life``, and calls it again, in the new world, each time that ranks went or came.

    Args:
        life: Trains in the world that ``elastic_world`` gives, from what this process knows. It is handed a
            function for moments at which all ranks know the same and hosts may come and go; collective.

    Returns:
        What ``life`` returned in the world that lasted.
    """
    return hvd.elastic.run(lambda members: life(members.check_host_updates))(_Members())  # type: ignore[no-any-return]


def elastic_world() -> World:
    """This rank's place in the world of now; starts Horovod in it where it is not up; collective.

    The variables of the launcher tell the place at the process's start only.
    """
    hvd.init()
    return World(
        hvd.rank(),
        hvd.size(),
        hvd.local_rank(),
        hvd.local_size(),
        hvd.cross_rank(),
        hvd.cross_size(),
        launcher="horovodrun",
    )

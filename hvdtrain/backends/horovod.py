"""Horovod: gradients averaged by allreduce with tensor fusion. The only file that imports it.

``python -m hvdtrain.backends.horovod`` under a launcher proves an installation: rank 0 prints
one JSON line with the sum that an allreduce gave.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn

from hvdtrain.backends.base import Backend, Replica
from hvdtrain.topology.environ import World, check_engine_size, find_world

_COMPRESSION = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16}


class HorovodBackend(Backend):
    """Horovod over MPI or Gloo, NCCL for the gradients where it was built in.

    The variables of ``tuning.horovod_environment`` must be set before this is made.
    """

    name = "horovod"

    def __init__(self, world: World, device: torch.device) -> None:
        hvd.init()
        check_engine_size(world, hvd.size())
        super().__init__(world, device)
        if device.type == "cuda":
            torch.cuda.set_device(device)

    def distribute(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, *, compression: str = "none"
    ) -> Replica:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        distributed = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            compression=_COMPRESSION[compression],
            op=hvd.Average,
        )
        # The distributed optimizer is a new object: what was in the old one's state is gone.
        distributed.load_state_dict(optimizer.state_dict())
        self._agree_optimizer(distributed)
        return Replica(model, distributed, model)

    def sum(self, values: torch.Tensor, name: str) -> torch.Tensor:
        return torch.as_tensor(hvd.allreduce(values, op=hvd.Sum, name=name))

    def broadcast(self, value: Any) -> Any:
        return hvd.broadcast_object(value, root_rank=0, name="broadcast")

    def gather(self, value: Any) -> list[Any]:
        return list(hvd.allgather_object(value, name="gather"))

    def agree_buffers(self, module: nn.Module) -> None:
        hvd.broadcast_parameters(dict(module.named_buffers()), root_rank=0)

    def close(self) -> None:
        hvd.shutdown()


def _prove() -> int:
    """A sum over all ranks; 0 when it is right."""
    hvd.init()
    world = find_world(os.environ)
    check_engine_size(world, hvd.size())
    total = float(hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum)[0])
    if hvd.rank() == 0:
        facts = {
            "size": hvd.size(),
            "sum": total,
            "horovod": version("horovod"),
            "mpi_built": bool(hvd.mpi_built()),
            "gloo_built": bool(hvd.gloo_built()),
            "nccl_built": bool(hvd.nccl_built()),
        }
        sys.stdout.write(json.dumps(facts) + "\n")
    right = total == hvd.size() * (hvd.size() + 1) / 2
    hvd.shutdown()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(_prove())

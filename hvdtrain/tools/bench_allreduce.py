"""One rank of ``hvdtrain bench allreduce``.

``python -m hvdtrain.tools.bench_allreduce`` is what our launcher starts: the request comes in ``REQUEST``,
and rank 0's events leave on stdout. Ranks that a foreign launcher started come here by way of ``join``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from hvdtrain.config import TuningConfig
from hvdtrain.errors import ExitCode, InputError
from hvdtrain.measure.allreduce import measure_allreduce
from hvdtrain.measure.allreduce_crew import Crew, open_crew
from hvdtrain.measure.allreduce_mpi import MpiChannel
from hvdtrain.measure.allreduce_request import LARGEST_ON_CPUS, LIBRARIES, AllreduceRequest, show_size
from hvdtrain.measure.network import network_document
from hvdtrain.topology.devices import Seat, check_seats
from hvdtrain.topology.environ import World, find_world
from hvdtrain.train.ending import end_rank
from hvdtrain.train.environment import prepare_environment
from hvdtrain.train.rank import relay

# Named here and in cli.bench_network, which must not import torch.
REQUEST = "HVDTRAIN_BENCH_REQUEST"

Emit = Callable[[Mapping[str, Any]], None]


def bench_rank(request: AllreduceRequest, world: World, emit: Emit) -> None:
    """Measures as one rank.

    Args:
        request: What to measure, the same on all ranks.
        world: Which rank this is.
        emit: Shows an event to the user; called on rank 0 only. The last one is ``result``.

    Raises:
        HvdtrainError: With the one line that the user gets.
    """
    if world.size < 2:
        raise InputError("an allreduce over 1 rank moves nothing", legal="-np 2 or more")
    prepare_environment(TuningConfig(), world, "horovod")
    notes: list[str] = []

    def tell(event: Mapping[str, Any]) -> None:
        if event["event"] == "note":
            notes.append(str(event["text"]))
        emit(event)

    with open_crew(world, on_cpu=request.on_cpu) as crew:
        check_seats([Seat(*place) for place in crew.channel.gather(_seat(crew))])
        chosen = replace(request, libraries=_libraries(crew, request, tell))
        if world.rank == 0:
            _tell_limits(crew, chosen, tell)
            tell({"event": "begin", "size": world.size, "hosts": _hosts(crew), "device": crew.device.type})
        rows = measure_allreduce(crew, chosen, tell)
        if world.rank == 0:
            rows.sort(key=lambda row: chosen.libraries.index(row.library))
            document = network_document(rows, _hosts(crew), notes, **_facts(crew))
            tell({"event": "result", "document": document})


def _facts(crew: Crew) -> dict[str, str]:
    """Where the buffers lie, and whose MPI it is: each has algorithms of its own."""
    facts = {"device": crew.device.type}
    return {**facts, "mpi": crew.channel.library} if isinstance(crew.channel, MpiChannel) else facts


def _libraries(crew: Crew, request: AllreduceRequest, tell: Emit) -> tuple[str, ...]:
    """Those that were asked for, or of all those that are there; all ranks find the same."""
    reasons = {name: crew.missing(name) for name in request.libraries or LIBRARIES}
    for name, reason in reasons.items():
        if reason and request.libraries:
            raise InputError(f"{name}: {reason}", where="--library")
        if reason and crew.world.rank == 0:
            tell({"event": "note", "text": f"without {name}: {reason}"})
    chosen = tuple(name for name, reason in reasons.items() if not reason)
    if not any(crew.carries(name, dtype) for name in chosen for dtype in request.dtypes):
        raise InputError("MPI has no 16-bit floating point", where="--dtype", do="measure float32")
    return chosen


def _tell_limits(crew: Crew, request: AllreduceRequest, tell: Emit) -> None:
    texts = []
    if not request.sizes and crew.device.type == "cpu":
        largest = show_size(LARGEST_ON_CPUS)
        texts.append(f"on CPUs sizes end at {largest}; pass --sizes 8B..256MB for larger ones")
    texts += [
        f"without {name} {dtype}: MPI has no 16-bit floating point"
        for name in request.libraries
        for dtype in request.dtypes
        if not crew.carries(name, dtype)
    ]
    if crew.neighbours:
        texts += [
            f"{name} is not measured inside a host: it can be taken apart only where MPI started the ranks"
            for name in request.libraries
            if not crew.can_split(name)
        ]
    for text in texts:
        tell({"event": "note", "text": text})


def _seat(crew: Crew) -> tuple[int, str, str]:
    rank, index = crew.world.rank, crew.device.index
    host = crew.hosts[rank]
    if crew.device.type != "cuda":
        return rank, host, ""
    # PyTorch tells a GPU's UUID since 2.5.
    return rank, host, str(getattr(torch.cuda.get_device_properties(crew.device), "uuid", f"{host}/{index}"))


def _hosts(crew: Crew) -> list[tuple[str, int]]:
    return [(name, crew.hosts.count(name)) for name in dict.fromkeys(crew.hosts)]


def join(request: AllreduceRequest, world: World, emit: Emit) -> None:
    """Measures as one rank of a launch that somebody else made; never returns from a failure."""
    try:
        bench_rank(request, world, emit)
    except BaseException as error:
        end_rank(error, world)


def main(env: Mapping[str, str]) -> int:
    """The program of a rank that our launcher started."""
    try:
        bench_rank(AllreduceRequest.from_json(env[REQUEST]), find_world(env), relay)
    except BaseException as error:
        end_rank(error)
    return int(ExitCode.DONE)


if __name__ == "__main__":
    sys.exit(main(os.environ))

"""``hvdtrain plan``: where each rank would run, as a table or JSON; starts nothing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice

import click

from hvdtrain.cli.placement_options import PlacementOptions, placement_options, resolve_placement
from hvdtrain.topology.hosts import Placement, RankPlace

# Ranks that are turned into text at a time: all at once would hold the document several times over.
_BATCH = 8192


@click.command()
@placement_options
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.argument("rest", nargs=-1, metavar="")
def command(placement: PlacementOptions, as_json: bool, rest: tuple[str, ...]) -> None:
    """Show where each rank would run.

    The hosts come from -H, --hostfile or --nodelist, or else from the Slurm, LSF or PBS job
    around; without any of these all ranks run on this machine. The device is the GPU that a rank
    would take; a plan for this machine alone shows none where it has no GPU.
    """
    resolved = _known_devices(resolve_placement(placement, following=rest), os.environ)
    if rest:
        raise click.UsageError(f"unexpected argument {rest[0]!r}; plan takes options only")
    for chunk in _json(resolved) if as_json else _table(resolved):
        sys.stdout.write(chunk)


def _known_devices(placement: Placement, environ: Mapping[str, str]) -> Placement:
    """The placement without GPUs where this machine, which has none, holds all ranks; no other is asked."""
    from hvdtrain.launch.gpus import count_gpus
    from hvdtrain.launch.names import is_this_machine

    hosts = placement.hosts
    if len(hosts) > 1 or not is_this_machine(hosts[0].name) or count_gpus(environ):
        return placement
    return replace(placement, ranks=tuple(place._replace(device=None) for place in placement.ranks))


def _json(placement: Placement) -> Iterator[str]:
    """The document, schema 1, in pieces: a rank a line."""
    head = {
        "schema": 1,
        "source": placement.source,
        "size": placement.size,
        "hosts": [{"name": host.name, "slots": host.slots} for host in placement.hosts],
    }
    yield json.dumps(head)[:-1] + ', "ranks": ['
    # Written out, for this takes a third of the time of json.dumps for each rank.
    text = lru_cache(maxsize=1024)(json.dumps)
    begin = "\n"
    for batch in _batches(placement.ranks):
        yield begin + ",\n".join(
            f'{{"rank": {rank}, "host": {text(host)}, "local_rank": {local_rank}, '
            f'"local_size": {local_size}, "cross_rank": {cross_rank}, "cross_size": {cross_size}, '
            f'"device": {text(device)}, "cores": {text(cores)}}}'
            for rank, host, local_rank, local_size, cross_rank, cross_size, device, cores in batch
        )
        begin = ",\n"
    yield "\n]}\n"


def _table(placement: Placement) -> Iterator[str]:
    """A line for each rank, the columns as wide as their widest cell."""
    yield f"ranks: {placement.size}, hosts: {len(placement.hosts)}, from {placement.source}\n"
    *others, cores = RankPlace._fields
    cells = [f"%{'-' if name == 'host' else ''}{_width(name, placement)}s" for name in others]
    line = "  ".join([*cells, "%s\n"])
    yield line % tuple(column.replace("_", " ") for column in (*others, cores))
    for batch in _batches(placement.ranks):
        yield "".join(line % (*place[:6], _cell(place.device), _cell(place.cores)) for place in batch)


def _width(column: str, placement: Placement) -> int:
    """Characters of a column. No number has more digits than the number of ranks, but a device may."""
    hosts = placement.hosts
    if column == "host":
        widest = max(len(host.name) for host in hosts)
    elif column == "device":
        widest = max(len(str(device)) for host in hosts for device in host.devices or (host.slots,))
    else:
        widest = len(str(placement.size))
    return max(len(column), widest)


def _cell(value: int | tuple[int, ...] | None) -> str:
    """A device, or cores as a range; "-" where there is none."""
    if value is None:
        return "-"
    return f"{value[0]}-{value[-1]}" if isinstance(value, tuple) else str(value)


def _batches(ranks: Sequence[RankPlace]) -> Iterator[Iterable[RankPlace]]:
    rest = iter(ranks)
    while batch := tuple(islice(rest, _BATCH)):
        yield batch

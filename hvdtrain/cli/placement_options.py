"""The options that say where ranks run; ``run``, ``plan``, ``bench`` and ``submit`` share them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from hvdtrain.errors import InputError
from hvdtrain.topology.allocation import find_cluster, nodelist_cluster
from hvdtrain.topology.hostfile import parse_host_list, read_hostfile
from hvdtrain.topology.hosts import Cluster, Placement, local_cluster, place, refuse_same_machine
from hvdtrain.topology.selection import select

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class PlacementOptions:
    """What the user said about hosts and ranks; None where nothing was said."""

    num_ranks: int | None = None
    hosts: str | None = None
    hostfile: Path | None = None
    nodelist: str | None = None
    tasks_per_node: str | None = None
    ranks_per_node: int | None = None
    include: str | None = None
    exclude: str | None = None
    cores_per_rank: int | None = None


_OPTIONS = (
    click.option(
        "-np", "-n", "--num-ranks", "num_ranks", type=int, help="Ranks in all; default: every slot."
    ),
    click.option("-H", "--hosts", metavar="a:2,b:2", help="Hosts and slots."),
    click.option(
        "--hostfile", type=click.Path(path_type=Path), metavar="FILE", help="Hosts and slots, a line each."
    ),
    click.option("--nodelist", metavar="n[1-3]", help="Hosts as Slurm writes them."),
    click.option("--tasks-per-node", metavar="2(x2),1", help="Slots of the hosts of --nodelist; default: 1."),
    click.option("--ranks-per-node", type=int, help="Ranks on each host; default: its slots."),
    click.option("--include", metavar="a:0,1;b", help="Only these hosts, and these GPUs of them."),
    click.option("--exclude", metavar="a:0,1;b", help="Not these hosts, or not these GPUs of them."),
    click.option("--cores-per-rank", type=int, help="Cores that each rank is bound to; default: no binding."),
)


def placement_options(function: Function) -> Function:
    """Gives a click command the options; its function receives them as ``placement``."""

    @wraps(function)
    def collected(*args: Any, **kwargs: Any) -> Any:
        own = {field.name: kwargs.pop(field.name) for field in fields(PlacementOptions)}
        return function(*args, placement=PlacementOptions(**own), **kwargs)

    for option in reversed(_OPTIONS):
        collected = option(collected)
    return collected  # type: ignore[return-value]


def resolve_placement(
    options: PlacementOptions, env: Mapping[str, str] | None = None, following: Sequence[str] = ()
) -> Placement:
    """Turns the options, or else the scheduler's environment, into a placement.

    Tells each notice once on stderr.

    Args:
        options: What the user said.
        env: The environment; None takes this process's.
        following: The words after the options, to notice a ``-H`` list that was written with blanks.

    Raises:
        InputError: The options are wrong or contradict each other.
    """
    cluster = _find(options, os.environ if env is None else env, following)
    for notice in cluster.notices:
        click.echo(f"hvdtrain: note: {notice}", err=True)
    chosen = select(cluster, options.include, options.exclude)
    if len(chosen.hosts) > 1:
        refuse_same_machine(chosen, _own_names())
    return place(chosen, options.num_ranks, options.ranks_per_node, options.cores_per_rank)


def _find(options: PlacementOptions, env: Mapping[str, str], following: Sequence[str]) -> Cluster:
    given = {"-H": options.hosts, "--hostfile": options.hostfile, "--nodelist": options.nodelist}
    sources = [name for name, value in given.items() if value is not None]
    if len(sources) > 1:
        raise InputError(f"{' and '.join(sources)} both name the hosts", legal=f"one of {', '.join(given)}")
    if options.tasks_per_node is not None and options.nodelist is None:
        raise InputError("given without --nodelist", where="--tasks-per-node", do="use --ranks-per-node")
    if options.hosts is not None:
        return parse_host_list(options.hosts, following)
    if options.hostfile is not None:
        return read_hostfile(options.hostfile)
    if options.nodelist is not None:
        per_node = str(max(options.ranks_per_node or 1, 1))
        return nodelist_cluster(
            options.nodelist, per_node if options.tasks_per_node is None else options.tasks_per_node
        )
    return find_cluster(env, read_hostfile) or _local(options)


def _local(options: PlacementOptions) -> Cluster:
    """This machine, with the slots that were asked for; ``place`` refuses numbers below 1."""
    asked = options.num_ranks or options.ranks_per_node or 1
    return local_cluster(max(asked, 1))


def _own_names() -> set[str]:
    """Names and addresses of this machine, without asking a name server."""
    import psutil

    name = socket.gethostname()
    addresses = {
        address.address.partition("%")[0]
        for of_interface in psutil.net_if_addrs().values()
        for address in of_interface
        if address.family in (socket.AF_INET, socket.AF_INET6)
    }
    return {name, name.partition(".")[0], *addresses}

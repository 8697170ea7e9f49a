"""The options that say where ranks run; ``run``, ``plan``, ``bench`` and ``submit`` share them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from hvdtrain.cli.option_types import FilledPath
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
    click.option("--hostfile", type=FilledPath(), metavar="FILE", help="Hosts and slots, a line each."),
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
    options: PlacementOptions,
    env: Mapping[str, str] | None = None,
    following: Sequence[str] = (),
    *,
    uses_gpus: bool = True,
) -> Placement:
    """Turns the options, or else the scheduler's environment, into a placement.

    Args and errors are those of ``resolve_cluster``.
    """
    cluster = resolve_cluster(options, env, following, uses_gpus=uses_gpus)
    return place(cluster, options.num_ranks, options.ranks_per_node, options.cores_per_rank)


def resolve_cluster(
    options: PlacementOptions,
    env: Mapping[str, str] | None = None,
    following: Sequence[str] = (),
    *,
    uses_gpus: bool = True,
) -> Cluster:
    """The hosts that the options, or else the scheduler's environment, name, those included that stay empty.

    Tells each notice once on stderr.

    Args:
        options: What the user said.
        env: The environment; None takes this process's.
        following: The words after the options, to notice a ``-H`` list that was written with blanks.
        uses_gpus: Whether a rank takes a GPU where there are some.

    Raises:
        InputError: The options are wrong or contradict each other.
    """
    environ = os.environ if env is None else env
    cluster = _find(options, environ, following) or _local(options, environ, uses_gpus)
    for notice in cluster.notices:
        click.echo(f"hvdtrain: note: {notice}", err=True)
    chosen = select(cluster, options.include, options.exclude)
    if len(chosen.hosts) > 1:
        from hvdtrain.launch.names import own_names

        refuse_same_machine(chosen, own_names())
    return chosen


def _find(options: PlacementOptions, env: Mapping[str, str], following: Sequence[str]) -> Cluster | None:
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
    return find_cluster(env, read_hostfile)


def _local(options: PlacementOptions, env: Mapping[str, str], uses_gpus: bool) -> Cluster:
    """This machine: a slot for each GPU, or without GPUs as many as were asked for.

    Raises:
        InputError: More ranks than GPUs.
    """
    from hvdtrain.launch.gpus import count_gpus

    asked = options.num_ranks or options.ranks_per_node or 1  # `place` refuses numbers below 1
    num_gpus = count_gpus(env) if uses_gpus else 0
    if num_gpus == 0:
        return local_cluster(max(asked, 1))
    if asked > num_gpus:
        raise InputError(
            f"{asked} ranks asked for, but this machine shows {num_gpus} GPU{'s' if num_gpus > 1 else ''}",
            where="-np" if options.num_ranks else "--ranks-per-node",
            legal=f"1 to {num_gpus}, a rank for each GPU",
            do="ask for fewer ranks or name more hosts; a program that uses no GPU runs with run --no-gpus",
        )
    return local_cluster(num_gpus)

"""``--elastic``: what a user may ask for, and the launcher that comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hvdtrain.errors import InputError

if TYPE_CHECKING:
    from hvdtrain.cli.placement_options import PlacementOptions
    from hvdtrain.config import Job
    from hvdtrain.launch.elastic import Elastic
    from hvdtrain.launch.plan import LaunchPlan
    from hvdtrain.topology.hosts import Cluster

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--elastic",
        is_flag=True,
        help="Go on without a new start when ranks go or come, by Horovod Elastic.",
    ),
    click.option(
        "--max-ranks",
        type=click.IntRange(min=1),
        metavar="N",
        help="With --elastic: ranks that there may be; default: -np, or else every slot.",
    ),
    click.option(
        "--commit-steps",
        type=click.IntRange(min=1),
        metavar="K",
        help="With --elastic: steps between two commits to memory, which ranks fall back to; default: 10.",
    ),
)


def elastic_options(function: Function) -> Function:
    """Gives a click command the options, which come to it one by one."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@dataclass(frozen=True)
class Bounds:
    """How many ranks an elastic job has.

    Attributes:
        start: To begin with.
        least: At least.
        most: At most; None sets no limit.
        commit_steps: Steps between two commits.
    """

    start: int
    least: int
    most: int | None
    commit_steps: int

    @property
    def env(self) -> dict[str, str]:
        """What tells the ranks when to commit."""
        from hvdtrain.train.launching import COMMIT_STEPS

        return {COMMIT_STEPS: str(self.commit_steps)}


def check_unused(options: Mapping[str, Any]) -> None:
    """Refuses the options that mean nothing without ``--elastic``.

    Raises:
        InputError: Names one.
    """
    for name in ("max_ranks", "commit_steps"):
        if options[name] is not None:
            option = f"--{name.replace('_', '-')}"
            raise InputError("given without --elastic", where=option, do=f"omit {option}, or pass --elastic")


def find_bounds(options: Mapping[str, Any], num_ranks: int | None, slots: int | None = None) -> Bounds:
    """How many ranks the user asks for.

    Args:
        options: ``min_ranks``, ``max_ranks``, ``commit_steps``, ``max_restarts`` and ``launcher`` as given.
        num_ranks: ``-np`` as given.
        slots: What the hosts offer; None where the ranks themselves say it.

    Raises:
        InputError: The numbers contradict each other, or an option does not go with ``--elastic``.
    """
    _check_together(options)
    least, most = options["min_ranks"] or 1, options["max_ranks"] or num_ranks
    if most is not None and least > most:
        option = "--max-ranks" if options["max_ranks"] else "-np"
        raise InputError(f"{least} with {option} {most}", where="--min-ranks", legal=f"1 to {most}")
    start = num_ranks or min(slots or most or least, most or slots or least)
    if most is not None and start > most:
        raise InputError(f"-np {start} with --max-ranks {most}", where="--elastic", legal=f"-np 1 to {most}")
    if least > start:
        offered = f"of {slots} slots" if num_ranks is None and slots else f"with -np {start}"
        raise InputError(f"{least} {offered}", where="--min-ranks", legal=f"1 to {start}")
    from hvdtrain.train.launching import DEFAULT_COMMIT_STEPS

    return Bounds(start, least, most, options["commit_steps"] or DEFAULT_COMMIT_STEPS)


def _check_together(options: Mapping[str, Any]) -> None:
    from hvdtrain.backends.choose import horovod_has_gloo, horovod_is_built

    if options["max_restarts"]:
        raise InputError("--elastic and --max-restarts cannot be combined", do="omit one of them")
    if options["launcher"] not in (None, "auto"):
        raise InputError(
            f"--launcher {options['launcher']} with --elastic, which horovodrun starts", do="omit --launcher"
        )
    if not horovod_is_built():
        raise InputError(
            "Horovod is not built in this environment",
            where="--elastic",
            do="build it with `hvdtrain build-horovod`, or use --max-restarts instead",
        )
    if not horovod_has_gloo():
        raise InputError(
            "this Horovod was built without Gloo, which elastic training needs",
            where="--elastic",
            do="run `hvdtrain build-horovod --force`, or use --max-restarts instead",
        )


def check_sizes(job: Job, bounds: Bounds, most: int) -> None:
    """Refuses a job that some number of ranks within the bounds could not train.

    Raises:
        InputError: Says which number, and why.
    """
    from hvdtrain.backends.choose import choose_backend
    from hvdtrain.train.preflight import check_batch

    name, _ = choose_backend(job.backend, 2)
    if name != "horovod":
        raise InputError(
            f"backend: {name} cannot go on when ranks go or come",
            where="--elastic",
            legal="horovod",
            do="use --max-restarts instead of --elastic",
        )
    for size in range(bounds.least, most + 1):
        check_batch(job, size)


def on_this_machine(
    bounds: Bounds, python: str, slots: int, devices: tuple[int, ...] | None = None
) -> Elastic:
    """The launcher of a job that has so many slots of this machine, and with them GPUs, if it uses them."""
    from hvdtrain.launch.discovery import discovery_argv
    from hvdtrain.launch.elastic import Elastic, local_slots

    hosts = discovery_argv(python, "list", local_slots(slots))
    return Elastic(bounds.start, bounds.least, bounds.most, hosts, (devices or tuple(range(slots)))[:slots])


def on_hosts(bounds: Bounds, plan: LaunchPlan, cluster: Cluster, placement: PlacementOptions) -> Elastic:
    """The launcher of a job on the hosts that the user, or the scheduler, named.

    Args:
        bounds: How many ranks.
        plan: Where they begin.
        cluster: All hosts.
        placement: What the user said of them.

    Raises:
        InputError: Hosts were chosen in a way that cannot be looked up again.
    """
    from hvdtrain.launch.discovery import discovery_argv
    from hvdtrain.launch.elastic import Elastic

    for option, given in (
        ("--include", placement.include),
        ("--exclude", placement.exclude),
        ("--cores-per-rank", placement.cores_per_rank),
        ("--bind", plan.bind != "none"),
    ):
        if given:
            raise InputError(f"{option} with --elastic: the hosts change", do=f"omit {option}")
    most = placement.ranks_per_node
    if placement.hostfile is not None:
        words = [str(placement.hostfile.absolute()), *([str(most)] if most else [])]
        hosts = discovery_argv(plan.python, "hostfile", *words)
    elif plan.is_local and len(cluster.hosts) == 1:
        slots, devices = cluster.hosts[0].slots, cluster.hosts[0].devices
        return on_this_machine(bounds, plan.python, min(slots, most or slots), devices)
    else:
        listed = ",".join(f"{one.name}:{min(one.slots, most or one.slots)}" for one in cluster.hosts)
        hosts = discovery_argv(plan.python, "list" if plan.slurm is None else "slurm", listed)
    return Elastic(bounds.start, bounds.least, bounds.most, hosts)


def with_commits(plan: LaunchPlan, bounds: Bounds) -> LaunchPlan:
    """The plan whose ranks know when to commit."""
    return replace(plan, env={**plan.env, **bounds.env})

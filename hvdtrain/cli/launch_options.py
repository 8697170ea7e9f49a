"""The options that say how ranks are started; ``run`` and ``submit`` share them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hvdtrain.cli.option_types import FilledPath, refuse_nan
from hvdtrain.errors import InputError

if TYPE_CHECKING:
    from hvdtrain.launch.plan import LaunchPlan
    from hvdtrain.launch.site import Site
    from hvdtrain.topology.hosts import Placement

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class LaunchOptions:
    """What the user said about the launch; None or empty where nothing was said."""

    launcher: str | None = None
    mpi_type: str | None = None
    bind: str = "none"
    nic: str | None = None
    ssh_port: int | None = None
    ssh_identity: Path | None = None
    env: tuple[str, ...] = ()
    prefix: str | None = None
    output: Path | None = None
    timeout_s: float | None = None
    tune: tuple[str, ...] = ()
    gpus: bool | None = None


_OPTIONS = (
    click.option("--launcher", metavar="NAME", help="auto, mpirun, horovodrun, srun or local."),
    click.option("--mpi", "mpi_type", metavar="TYPE", help="Type for srun --mpi; default: one that fits."),
    click.option(
        "--bind",
        type=click.Choice(["none", "core", "numa", "gpu"]),
        default="none",
        help="What each rank is bound to; gpu: the cores near its GPU.",
    ),
    click.option("--nic", metavar="NAME", help="Network cards between the hosts; default: ask the hosts."),
    click.option("--ssh-port", type=click.IntRange(1, 65535), help="Port of the hosts' sshd."),
    click.option("--ssh-identity", type=FilledPath(), metavar="FILE", help="Key for them."),
    click.option("--env", multiple=True, metavar="NAME[=VALUE]", help="A variable for all ranks."),
    click.option("--prefix", metavar="WORDS", help="Container or wrapper before the program."),
    click.option("--output", type=FilledPath(), metavar="DIR", help="A log for each rank."),
    click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(0, float("inf"), min_open=True, max_open=True),
        callback=refuse_nan,
        metavar="SECONDS",
        help="End a job that runs longer, with exit code 4.",
    ),
    click.option("--tune", multiple=True, metavar="KEY=VALUE", help="A knob of Horovod's: cycle_ms=0.5."),
    click.option("--gpus/--no-gpus", default=None, help="Ranks compute on GPUs; default: if there are any."),
)


_NO_CARDS = (None, "auto", "none")


def launch_options(function: Function) -> Function:
    """Gives a click command the options; its function receives them as ``launch``."""

    @wraps(function)
    def collected(*args: Any, **kwargs: Any) -> Any:
        own = {field.name: kwargs.pop(field.name) for field in fields(LaunchOptions)}
        return function(*args, launch=LaunchOptions(**own), **kwargs)

    for option in reversed(_OPTIONS):
        collected = option(collected)
    return collected  # type: ignore[return-value]


def with_site(options: LaunchOptions, site: Site) -> LaunchOptions:
    """The options, where they say nothing filled up from the site's defaults."""
    return replace(
        options,
        launcher=options.launcher or site.launcher or "auto",
        mpi_type=options.mpi_type or site.mpi,
        nic=options.nic or site.nic,
        prefix=site.prefix if options.prefix is None else options.prefix,
    )


def check_options(options: LaunchOptions, *, is_one_host: bool) -> None:
    """Finds mistakes that would else be told only when a job starts.

    Args:
        options: What the user and the site said.
        is_one_host: Whether the job has one host.

    Raises:
        InputError: An option is wrong.
    """
    from hvdtrain.launch.job import check_launcher
    from hvdtrain.launch.network import named_network

    check_launcher(options.launcher or "auto")
    if options.nic not in _NO_CARDS:
        named_network(str(options.nic), is_one_host)
    _words(options.prefix)
    _tuning(options.tune)


def make_plan(
    options: LaunchOptions,
    placement: Placement,
    program: tuple[str, ...],
    environ: Mapping[str, str],
    *,
    is_dry: bool,
) -> tuple[LaunchPlan, tuple[str, ...]]:
    """The plan of a launch, and what the user should know about how it was made.

    Args:
        options: What the user and the site said.
        placement: Which rank runs where.
        program: Program and arguments.
        environ: This process's environment.
        is_dry: Whether nothing is to be started: then a host that does not answer is no error.

    Raises:
        InputError: An option is wrong.
        LaunchError: A host does not answer.
    """
    from hvdtrain.launch.exports import parse_exports
    from hvdtrain.launch.machine import plan_here, refuse_shared_gpus, slurm_facts, survey_hosts
    from hvdtrain.launch.network import named_network
    from hvdtrain.launch.plan import Ssh

    values, exported = parse_exports(options.env, environ)
    _refuse_missing_key(options.ssh_identity)
    plan = replace(
        plan_here(placement, environ),
        program=program,
        env={**_tuning(options.tune), **values},
        exported=exported,
        prefix=_words(options.prefix),
        log_dir=options.output.absolute() if options.output else None,
        bind="core" if options.bind == "none" and placement.ranks[0].cores else options.bind,
        ssh=Ssh(options.ssh_port, str(options.ssh_identity.absolute()) if options.ssh_identity else ""),
        slurm=slurm_facts(environ, options.mpi_type or ""),
    )
    if options.nic not in _NO_CARDS:
        plan = replace(plan, network=named_network(str(options.nic), plan.is_local))
    notes: tuple[str, ...] = ()
    if not plan.is_local:
        plan, notes = survey_hosts(plan, is_needed=not is_dry, picks_network=options.nic != "none")
    if options.gpus is not None:
        plan = replace(plan, uses_gpus=options.gpus)
    refuse_shared_gpus(plan)
    if plan.bind == "gpu" and not plan.uses_gpus:
        raise InputError("no rank uses a GPU", where="--bind gpu", legal="--bind none, core or numa")
    return plan, notes


def _refuse_missing_key(path: Path | None) -> None:
    # os.path.isfile: below a folder that may not be searched there is none for ssh, which only warns of it,
    # and tries others.
    if path is not None and not os.path.isfile(path):
        raise InputError(f"there is no file {path}", where="--ssh-identity")


def _words(prefix: str | None) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(prefix or ""))
    except ValueError as error:
        raise InputError(f"{prefix!r}: {error}", where="--prefix", legal="words of a shell") from None


def _tuning(settings: tuple[str, ...]) -> dict[str, str]:
    """Horovod's variables for ``--tune``, by the keys of a job file's ``tuning``."""
    if not settings:
        return {}
    from hvdtrain.jobfile import load_job
    from hvdtrain.tuning import horovod_environment

    for setting in settings:
        if "=" not in setting:
            raise InputError(f"{setting!r}", where="--tune", legal="key=value: --tune cycle_ms=0.5")
    return horovod_environment(load_job(None, [f"tuning.{setting}" for setting in settings]).tuning)

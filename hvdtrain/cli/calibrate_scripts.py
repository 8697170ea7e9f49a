"""The batch scripts of calibration runs: ``launch.sbatch`` renders them, as it does those of ``submit``."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hvdtrain.cli.option_types import FilledPath, FilledText
from hvdtrain.errors import InputError

if TYPE_CHECKING:
    from hvdtrain.launch.site import Site
    from hvdtrain.scaling.profile import Profile

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--job", type=FilledPath(), metavar="JOB.yaml", help="With --out: the profiled job's file."),
    click.option(
        "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="With --job: override a key of it."
    ),
    click.option("--partition", type=FilledText(), help="Slurm's partition; default: the site's."),
    click.option("--account", type=FilledText(), help="Slurm's account; default: the site's."),
    click.option("--time", type=FilledText(), help="Time limit of each run; default: thrice what it takes."),
    click.option(
        "--cpus-per-rank", type=click.IntRange(1, 1_000_000), help="Cores of a rank; default: as profiled."
    ),
    click.option("--module", "modules", multiple=True, metavar="NAME", help="Environment module to load."),
    click.option("--setup", multiple=True, metavar="LINE", help="Line of shell before the ranks start."),
    click.option("--sbatch", multiple=True, metavar="KEY=VALUE", help="Any other option of sbatch."),
    click.option("--launcher", metavar="NAME", help="auto, mpirun, horovodrun, srun or local."),
)
_OWN = (sys.executable, "-P", "-m", "hvdtrain.cli.main")
_SITE_LIMITS = ("memory", "qos", "constraint", "array", "dependency", "reservation", "exclusive")
_LEAST_MINUTES = 10


def script_options(function: Function) -> Function:
    """Gives a click command the options, which come to it one by one."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def check_folder(folder: Path | None) -> None:
    """Refuses a folder that holds something: results of other runs would be read as those of the new ones.

    Raises:
        InputError: It is a file, holds something, or cannot be made or read.
    """
    if folder is None:
        return
    try:
        if not folder.exists():
            return
        if not folder.is_dir():
            raise InputError(f"{folder} is no folder", where="--out", do="name another")
        is_empty = next(folder.iterdir(), None) is None
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}", where="--out") from None
    if not is_empty:
        do = "name another; --read reads the results of a calibration"
        raise InputError(f"{folder} is not empty", where="--out", legal="a new or empty folder", do=do)


def scripts_of(
    document: dict[str, Any],
    profile: Profile,
    options: Mapping[str, Any],
    program: tuple[str, ...] | None,
) -> dict[str, str]:
    """The batch script of each proposed run by its name; each run of ``document`` gets its program too.

    Args:
        document: The proposal.
        profile: What it is of.
        options: What the user said.
        program: The words behind ``--``.

    Raises:
        InputError: The job of the profile is not told or another, or an option is wrong.
    """
    from hvdtrain.launch.site import read_site, site_path

    site = read_site(site_path(os.environ))
    subject = _subject(profile, options, program)
    scripts = {}
    for run in document["runs"]:
        folder = options["out"].absolute()
        words = _allreduce(run, folder, profile) if run["kind"] == "allreduce" else subject(run, folder)
        run["program"] = list(words)
        scripts[run["name"]] = _render(run, words, profile, (options, site, document["gpus_per_node"]))
    return scripts


def write_folder(
    folder: Path, document: Mapping[str, Any], profile: Profile, scripts: Mapping[str, str]
) -> None:
    """Writes the scripts and the plan, the plan last.

    Raises:
        InputError: The folder cannot be made or written.
    """
    from hvdtrain.files import write_atomically
    from hvdtrain.scaling.calibration_results import PLAN

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, script in scripts.items():
            (folder / f"{name}.sh").write_text(script, "utf-8")
            (folder / f"{name}.sh").chmod(0o755)
        plan = {**document, "profile": profile.document()}
        write_atomically(folder / PLAN, json.dumps(plan, allow_nan=False) + "\n")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(folder)) from None


Words = Callable[[Mapping[str, Any], Path], tuple[str, ...]]


def _subject(profile: Profile, options: Mapping[str, Any], program: tuple[str, ...] | None) -> Words:
    """From a run to the program that profiles the job on its ranks."""
    if program is not None:
        if not program or not program[0]:
            raise InputError("no program behind --", legal="-- PROGRAM [ARGUMENT ...]")
        if options["job"] or options["overrides"]:
            raise InputError("both a job file and a program behind --", do="give one of them")
        return lambda run, folder: _script_words(run, folder, program)
    job = options["job"]
    if job is None and (profile.source != "profile" or profile.job != "digits"):
        raise InputError(
            f"the profile is of {profile.job!r}, and its job file is not told",
            where="--out",
            do="give --job JOB.yaml, or -- PROGRAM for a script of yours",
        )
    sizes = _batch_words(profile, job, options["overrides"])
    return lambda run, folder: (
        *_OWN,
        *("profile", *([str(job.absolute())] if job else []), f"--steps={run['steps']}"),
        *(f"--set={one}" for one in (*options["overrides"], *sizes(run["nodes"] * run["ranks_per_node"]))),
        *(f"--output={folder / run['name']}.json", *_on_cpu(profile)),
    )


def _batch_words(
    profile: Profile, path: Path | None, overrides: tuple[str, ...]
) -> Callable[[int], tuple[str, ...]]:
    """What keeps the samples of a rank: a global batch grows with the ranks."""
    from hvdtrain.jobfile import load_job

    job = load_job(path, overrides)
    if job.name != profile.job:
        raise InputError(
            f"is the job {job.name!r}, the profile is of {profile.job!r}", where=str(path or "--job")
        )
    share = profile.global_batch / profile.size
    if job.batch.global_ is None:
        if job.batch.per_rank != share:
            told = f"a rank takes {job.batch.per_rank} samples a step, {share:g} in the profile"
            raise InputError(told, where=str(path), do=f"give --set batch.per_rank={share:g}")
        return lambda _size: ()
    return lambda size: (f"batch.global={round(size * share)}",)


def _script_words(run: Mapping[str, Any], folder: Path, program: tuple[str, ...]) -> tuple[str, ...]:
    from hvdtrain.train.profile_request import DEFAULT_WARM_UP, ProfileRequest

    request = ProfileRequest(run["steps"], DEFAULT_WARM_UP, folder / f"{run['name']}.json")
    return ("env", *(f"{name}={value}" for name, value in request.environment().items()), *program)


def _allreduce(run: Mapping[str, Any], folder: Path, profile: Profile) -> tuple[str, ...]:
    from hvdtrain.scaling.calibration_runs import ALLREDUCE_S

    words = ("bench", "allreduce", f"--limit={ALLREDUCE_S:g}", f"--save={folder / run['name']}.json")
    return (*_OWN, *words, *_on_cpu(profile))


def _on_cpu(profile: Profile) -> tuple[str, ...]:
    return () if profile.device == "cuda" else ("--no-gpus",)


def _render(
    run: Mapping[str, Any],
    words: tuple[str, ...],
    profile: Profile,
    said: tuple[Mapping[str, Any], Site, int],
) -> str:
    from hvdtrain.cli.launch_options import LaunchOptions, check_options, with_site
    from hvdtrain.cli.sbatch_options import sbatch_options, with_named
    from hvdtrain.launch.exports import submitted_names
    from hvdtrain.launch.sbatch import BatchJob, render, setup_names

    options, site, node = said
    launch = with_site(LaunchOptions(launcher=options["launcher"]), site)
    check_options(launch, is_one_host=run["nodes"] == 1)
    setup = (*site.setup, *options["setup"])
    log = str(options["out"].absolute() / f"{run['name']}.log").replace("%", "%%")
    wanted = with_named(
        {
            **dict.fromkeys((*_SITE_LIMITS, "max_restarts", "signal")),
            **{name: options[name] for name in ("partition", "account", "sbatch")},
            "nodes": run["nodes"],
            "gpus_per_node": str(run["ranks_per_node"]) if profile.device == "cuda" else None,
            "ranks_per_node": run["ranks_per_node"],
            "cpus_per_rank": options["cpus_per_rank"] or _cores(profile, node),
            "time": options["time"] or _limit(run["duration_s"]),
            "log": log,
        }
    )
    names = dict.fromkeys(setup_names(setup))
    return render(
        BatchJob(
            name=f"calibrate-{run['name']}",
            launch=(
                *_launch_words(launch),
                *(f"--env={name}" for name in names),
                *(_on_cpu(profile) or ("--gpus",)),
            ),
            program=words,
            options=sbatch_options(site, wanted),
            signal=wanted["signal"] or "",
            is_step_signalled=launch.launcher == "srun",
            modules=options["modules"] or site.modules,
            setup=setup,
            exported=submitted_names(os.environ, ()),
        ),
        sys.executable,
    )


def _launch_words(launch: Any) -> tuple[str, ...]:
    """What a site says of launches, as options of ``hvdtrain run``."""
    given = {
        "--launcher": None if launch.launcher == "auto" else launch.launcher,
        "--mpi": launch.mpi_type,
        "--nic": launch.nic,
        "--prefix": launch.prefix,
    }
    return tuple(f"{name}={value}" for name, value in given.items() if value is not None)


def _cores(profile: Profile, gpus_per_node: int) -> int:
    """A rank's share of a full node's cores, for its loader to be as fast as on a full node."""
    node_cores = profile.loader.cores_per_rank * max(host.ranks for host in profile.hosts)
    return max(1, int(node_cores / gpus_per_node))


def _limit(duration_s: float) -> str:
    return str(max(_LEAST_MINUTES, math.ceil(3 * duration_s / 60)))

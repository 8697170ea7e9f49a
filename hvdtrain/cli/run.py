"""``hvdtrain run``: starts any program, one process per slot, and stays with it."""

from __future__ import annotations

import fcntl
import io
import json
import os
import stat
import sys
import termios
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from hvdtrain.cli.elastic import check_unused, elastic_options, find_bounds, on_hosts, with_commits
from hvdtrain.cli.ending_signals import ending_signals
from hvdtrain.cli.launch_options import LaunchOptions, launch_options, make_plan, with_site
from hvdtrain.cli.placement_options import PlacementOptions, placement_options, resolve_cluster
from hvdtrain.cli.restarts import Restarts, check_restarts, note, restart_options
from hvdtrain.errors import ExitCode, InputError

if TYPE_CHECKING:
    from hvdtrain.cli.lives import Lives
    from hvdtrain.launch.plan import Launcher, LaunchPlan
    from hvdtrain.topology.hosts import Placement


# All words after the first that is no option are the program's, with "--" or without.
@click.command(context_settings={"allow_interspersed_args": False})
@placement_options
@launch_options
@restart_options
@elastic_options
@click.option(
    "--tag/--no-tag", "has_tags", default=None, help="The rank before each line; default: with several."
)
@click.option("--dry-run", is_flag=True, help="Print the command and environment that would run, and stop.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON document on stdout.")
@click.argument("program", nargs=-1, metavar="-- PROGRAM [ARGUMENT]...", type=click.UNPROCESSED)
def command(
    placement: PlacementOptions, launch: LaunchOptions, program: tuple[str, ...], **options: Any
) -> int:
    """Run any program as ranks, one process per slot.

    The hosts come from -H, --hostfile or --nodelist, or else from the Slurm, LSF or PBS job
    around; without any of these all ranks run on this machine.

    For example: hvdtrain run -H h1:4,h2:4 --max-restarts 3 --min-ranks 4 -- hvdtrain train job.yaml

    Or: hvdtrain run --hostfile hosts --elastic --min-ranks 4 -- hvdtrain train job.yaml
    """
    from hvdtrain.cli.lives import Lives
    from hvdtrain.launch.restart import RUN_DIR, Trail, offered
    from hvdtrain.launch.site import read_site, site_path
    from hvdtrain.topology.hosts import place

    _refuse_inside_a_launch(os.environ)
    _show_every_character()
    if options["elastic"]:
        return _run_elastically(placement, launch, program, options)
    check_unused(options)
    cluster = resolve_cluster(placement, following=program, uses_gpus=launch.gpus is not False)
    placed = place(cluster, placement.num_ranks, placement.ranks_per_node, placement.cores_per_rank)
    _check_program(program)
    check_restarts(options["max_restarts"], options["min_ranks"], placed.size)
    lives = Lives(
        with_site(launch, read_site(site_path(os.environ))),
        offered(cluster, placement.ranks_per_node),
        placement.cores_per_rank,
        program,
        Restarts(options["max_restarts"], Trail(os.environ.get(RUN_DIR, ""))),
        options["min_ranks"],
        options["has_tags"],
        options["as_json"],
    )
    with ending_signals(lives.restarts.signals):
        return _run(lives, placed, is_dry=options["dry_run"])


def _check_program(program: tuple[str, ...]) -> None:
    if not program or not program[0]:
        what = "the program's name is empty" if program else "no program to run"
        raise InputError(what, legal="hvdtrain run [OPTIONS] -- PROGRAM [ARGUMENT ...]")


def _run_elastically(
    placement: PlacementOptions, launch: LaunchOptions, program: tuple[str, ...], options: Mapping[str, Any]
) -> int:
    """Runs ranks that may go and come, to the job's one end."""
    from hvdtrain.cli.elastic_job import refuse, run_program
    from hvdtrain.launch.restart import offered
    from hvdtrain.launch.site import read_site, site_path
    from hvdtrain.topology.hosts import place

    # Where no hosts are named, this machine takes as many ranks as there may be.
    most = replace(placement, num_ranks=options["max_ranks"] or placement.num_ranks)
    cluster = resolve_cluster(most, following=program, uses_gpus=launch.gpus is not False)
    _check_program(program)
    slots = offered(cluster, placement.ranks_per_node).slots
    bounds = find_bounds({**options, "launcher": launch.launcher}, placement.num_ranks, slots)
    placed = place(cluster, bounds.start, placement.ranks_per_node, placement.cores_per_rank)
    asked = with_site(launch, read_site(site_path(os.environ)))
    plan, notes = make_plan(asked, placed, program, os.environ, is_dry=options["dry_run"])
    plan, elastic = with_commits(plan, bounds), on_hosts(bounds, plan, cluster, placement)
    refuse(elastic, plan)
    if options["dry_run"]:
        return _show(plan, elastic, notes + elastic.notes(plan), options["as_json"])
    for text in notes:
        note(text)
    return run_program(
        elastic,
        plan,
        timeout_s=launch.timeout_s,
        has_tags=options["has_tags"],
        as_json=options["as_json"],
    )


def _run(lives: Lives, placement: Placement, *, is_dry: bool) -> int:
    from hvdtrain.launch.job import choose_launcher, warnings

    plan, notes = lives.plan(placement, is_dry=is_dry)
    chosen = choose_launcher(plan, lives.launch.launcher or "auto")
    if is_dry:
        return _show(plan, chosen, notes + chosen.notes(plan), lives.as_json)
    if _holds_data(0):
        note("the ranks read nothing from stdin; give them the data as a file")
    for text in warnings(chosen, plan):
        note(text)
    return lives.run(plan)


def _refuse_inside_a_launch(environ: Mapping[str, str]) -> None:
    """Each rank of a launch would start a job of its own."""
    from hvdtrain.topology.environ import find_world

    world = find_world(environ)
    if world.size > 1:
        raise InputError(
            f"hvdtrain run inside a launch of {world.size} ranks by {world.launcher}: the ranks run already",
            do="start the program itself, or hvdtrain run outside of the launch",
        )


def _show_every_character() -> None:
    """A rank may print what the terminal's encoding lacks; that must not end the job."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _holds_data(descriptor: int) -> bool:
    """Whether a descriptor is a file that is not empty, or a pipe into which something was written."""
    try:
        told = os.fstat(descriptor)
        if stat.S_ISFIFO(told.st_mode):
            size = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
            return int.from_bytes(size, sys.byteorder) > 0
    except OSError:  # it is closed
        return False
    return stat.S_ISREG(told.st_mode) and told.st_size > 0


def _show(plan: LaunchPlan, launcher: Launcher, notes: tuple[str, ...], as_json: bool) -> int:
    from hvdtrain.launch.describe import describe_plan, masked

    if as_json:
        print(json.dumps({**describe_plan(plan, launcher), "notes": notes}, indent=2))
    else:
        print(masked(launcher.command(plan)).display())
        for note in notes:
            print(f"hvdtrain: note: {note}", file=sys.stderr)
    return int(ExitCode.DONE)

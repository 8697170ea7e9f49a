"""``hvdtrain run``: starts any program, one process per slot, and stays with it."""

from __future__ import annotations

import fcntl
import io
import json
import os
import signal
import stat
import sys
import termios
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from hvdtrain.cli.launch_options import LaunchOptions, launch_options, make_plan, with_site
from hvdtrain.cli.placement_options import PlacementOptions, placement_options, resolve_placement
from hvdtrain.errors import ExitCode, InputError

if TYPE_CHECKING:
    from hvdtrain.launch.plan import Launcher, LaunchPlan
    from hvdtrain.launch.supervise import JobOutcome, Line


# All words after the first that is no option are the program's, with "--" or without.
@click.command(context_settings={"allow_interspersed_args": False})
@placement_options
@launch_options
@click.option("--tag/--no-tag", default=None, help="The rank before each line; default: with several.")
@click.option("--dry-run", is_flag=True, help="Print the command and environment that would run, and stop.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON document on stdout.")
@click.argument("program", nargs=-1, metavar="-- PROGRAM [ARGUMENT]...", type=click.UNPROCESSED)
def command(
    placement: PlacementOptions,
    launch: LaunchOptions,
    tag: bool | None,
    dry_run: bool,
    as_json: bool,
    program: tuple[str, ...],
) -> int:
    """Run any program as ranks, one process per slot.

    The hosts come from -H, --hostfile or --nodelist, or else from the Slurm, LSF or PBS job
    around; without any of these all ranks run on this machine.
    """
    from hvdtrain.launch.job import choose_launcher
    from hvdtrain.launch.site import read_site, site_path

    _refuse_inside_a_launch(os.environ)
    _show_every_character()
    resolved = resolve_placement(placement, following=program, uses_gpus=launch.gpus is not False)
    if not program or not program[0]:
        what = "the program's name is empty" if program else "no program to run"
        raise InputError(what, legal="hvdtrain run [OPTIONS] -- PROGRAM [ARGUMENT ...]")
    options = with_site(launch, read_site(site_path(os.environ)))
    plan, notes = make_plan(options, resolved, program, os.environ, is_dry=dry_run)
    chosen = choose_launcher(plan, options.launcher or "auto")
    notes += chosen.notes(plan)
    if dry_run:
        return _show(plan, chosen, notes, as_json)
    if _holds_data(0):
        print(
            "hvdtrain: note: the ranks read nothing from stdin; give them the data as a file", file=sys.stderr
        )
    return _run(plan, chosen, options.timeout_s, tag, as_json)


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


def _run(
    plan: LaunchPlan, launcher: Launcher, timeout_s: float | None, tag: bool | None, as_json: bool
) -> int:
    from hvdtrain.launch.job import launch_job
    from hvdtrain.launch.supervise import failure_text, tagged

    # With --json stdout is for the one document.
    streams = {"stdout": sys.stderr if as_json else sys.stdout, "stderr": sys.stderr}
    size = plan.size if tag is None else 2 if tag else 1

    def show(line: Line) -> None:
        stream = streams[line.stream]
        stream.write(tagged(line, size) + "\n")
        stream.flush()

    try:
        outcome = launch_job(plan, show, lambda *_: None, launcher=launcher.name, timeout_s=timeout_s)
    except BrokenPipeError:  # `| head`; the job has been ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 128 + signal.SIGPIPE
    text = failure_text(outcome, plan.log_dir) if outcome.exit_code else ""
    if text:
        print(f"hvdtrain: {text}", file=sys.stderr)
    if outcome.reason and plan.uses_gpus and outcome.exit_code == ExitCode.USAGE:
        print("hvdtrain: note: for a program that uses no GPU pass --no-gpus", file=sys.stderr)
    if as_json:
        print(json.dumps(_document(outcome, launcher.name, text)))
    return int(outcome.exit_code)


def _document(outcome: JobOutcome, launcher: str, text: str) -> dict[str, object]:
    first = outcome.first_failure
    return {
        "schema": 1,
        "exit_code": int(outcome.exit_code),
        "launcher": launcher,
        "size": outcome.size,
        "done": sorted(outcome.done),
        "failed_rank": first.rank if first else None,
        "failed_host": first.host if first else None,
        "failed_code": first.code if first else None,
        "other_failures": [
            {"rank": end.rank, "host": end.host, "code": end.code, "error": end.error}
            for end in outcome.other_failures
        ],
        "error": text,
    }

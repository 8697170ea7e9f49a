"""``hvdtrain profile``: where each rank's time goes in a step, of a job or of the user's own script."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hvdtrain.cli.bench_output import tell_note
from hvdtrain.cli.bench_ranks import MeasuringError, find_launch, tell_failure, told_once
from hvdtrain.cli.documents import PROFILE, TRACE
from hvdtrain.cli.launch_options import LaunchOptions
from hvdtrain.cli.option_types import FilledPath, import_folders
from hvdtrain.cli.placement_options import PlacementOptions, placement_options
from hvdtrain.cli.profile_launch import ProfileLaunch
from hvdtrain.cli.program_words import PROGRAM, ProgramCommand
from hvdtrain.cli.targets import check_target, is_same_place
from hvdtrain.errors import ExitCode, InputError

if TYPE_CHECKING:
    from hvdtrain.config import Job
    from hvdtrain.topology.environ import World
    from hvdtrain.train.profile_request import ProfileRequest

_EXAMPLES = (
    "\b\n"
    "hvdtrain profile job.yaml -np 2\n"
    "hvdtrain profile job.yaml -H node1:4,node2:4 --output two-nodes.json --trace trace.json\n"
    "hvdtrain profile -np 2 --steps 100 -- python script.py --lr 0.1\n"
    "hvdtrain advise profile.json --network 25GbE\n"
)


@click.command(cls=ProgramCommand, epilog=_EXAMPLES, options_metavar="[OPTIONS] [JOB | -- PROGRAM ...]")
@click.argument("job", required=False, type=FilledPath(), metavar="")
@placement_options
@click.option("--launcher", metavar="NAME", help="auto, mpirun, horovodrun, srun or local.")
@click.option("--gpus/--no-gpus", default=None, help="Ranks compute on GPUs; default: if there are any.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of the job file."
)
@click.option(
    "--steps", type=click.IntRange(2, 1_000_000), default=50, show_default=True, help="Steps to time."
)
@click.option(
    "--warmup", type=click.IntRange(1, 1_000_000), default=10, show_default=True, help="Steps before them."
)
@click.option(
    "--output",
    type=FilledPath(),
    metavar="FILE",
    default="profile.json",
    show_default=True,
    help="Where the profile goes.",
)
@click.option("--trace", type=FilledPath(), metavar="FILE", help="Write each section for Perfetto.")
@click.option("--json", "as_json", is_flag=True, help="Print the profile as one JSON document on stdout.")
@click.pass_context
def command(
    ctx: click.Context, /, job: Path | None, placement: PlacementOptions, as_json: bool, **options: Any
) -> int:
    """Time the parts of a step on each rank: load, forward, backward, exposed communication, and the rest.

    JOB is a job file; without it it is the small network on handwritten digits. Nothing is evaluated or
    saved. With -- PROGRAM it is a script of yours that uses hvdtrain.start().

    Writes profile.json, which `hvdtrain advise` reads.
    """
    from hvdtrain.train.profile_request import ProfileRequest

    program: tuple[str, ...] | None = ctx.meta.get(PROGRAM)
    launch = LaunchOptions(launcher=options["launcher"], gpus=options["gpus"])
    request = ProfileRequest(options["steps"], options["warmup"], options["output"], options["trace"])
    with told_once():
        world = find_launch(placement, launch)
        if world is None or world.rank == 0:  # which alone writes
            _check_targets(request, job, program or ())
        if program is not None:
            _check_program(program, job, options["overrides"], world)
            return _profile_script(ProfileLaunch(placement, launch), program, request, as_json)
        return _profile_job(job, options["overrides"], world, (placement, launch), request, as_json)


def _check_targets(request: ProfileRequest, job: Path | None, program: tuple[str, ...]) -> None:
    inputs = (*([job] if job else ()), *map(Path, program))
    check_target("--output", request.file, *inputs, kind=PROFILE)
    check_target("--trace", request.trace, *inputs, kind=TRACE)
    if request.file and request.trace and is_same_place(request.file, request.trace):
        raise InputError(f"{request.trace} is the file of --output", where="--trace", do="name another")


def _check_program(
    program: tuple[str, ...], job: Path | None, overrides: tuple[str, ...], world: World | None
) -> None:
    if not program or not program[0]:
        raise InputError("no program behind --", legal="hvdtrain profile [OPTIONS] -- PROGRAM [ARGUMENT ...]")
    if job is not None:
        raise InputError(f"both the job file {job} and a program behind --", do="profile one of them")
    if overrides:
        raise InputError("a program has no job file", where=f"--set {overrides[0]}", do="omit --set")
    if world is not None:
        raise InputError(
            f"profile inside a launch by {world.launcher}: the ranks run already",
            do="set HVDTRAIN_PROFILE=FILE for the script instead",
        )


def _profile_job(
    path: Path | None,
    overrides: tuple[str, ...],
    world: World | None,
    where: tuple[PlacementOptions, LaunchOptions],
    request: ProfileRequest,
    as_json: bool,
) -> int:
    from hvdtrain.data.validate import validate_source
    from hvdtrain.jobfile import load_job
    from hvdtrain.train.launching import rank_program
    from hvdtrain.train.preflight import check_batch

    folders = import_folders(path)
    sys.path += folders
    job = load_job(path, (*overrides, "resume=never"))
    validate_source(job.data)
    if world is not None:
        return _join(job, world, request, as_json)
    launch = ProfileLaunch(*where, lambda size: check_batch(job, size))
    program, env = rank_program(job, None, folders)
    try:
        document = launch.run(
            (*program[:-1], "hvdtrain.tools.profile.rank"), {**env, **request.environment()}
        )
    except MeasuringError as error:
        return tell_failure(error, as_json)
    return _deliver(document, request, as_json)


def _join(job: Job, world: World, request: ProfileRequest, as_json: bool) -> int:
    """Measures as one rank of a launch that somebody else made."""
    from hvdtrain.tools.profile.rank import profile_job
    from hvdtrain.train.ending import end_rank
    from hvdtrain.train.preflight import check_batch

    try:
        check_batch(job, world.size)
        document = profile_job(job, world, request)
    except BaseException as error:
        end_rank(error, world)
    return _deliver(document, request, as_json) if world.rank == 0 else int(ExitCode.DONE)


def _profile_script(
    launch: ProfileLaunch, program: tuple[str, ...], request: ProfileRequest, as_json: bool
) -> int:
    from hvdtrain.scaling.profile import read_profile

    assert request.file
    before = _made(request.file)
    try:
        launch.run_program(program, request.environment(), is_quiet=as_json)
    except MeasuringError as error:
        return tell_failure(error, as_json)
    if _made(request.file) == before:
        raise InputError(
            "the program ended without a profile",
            do="use hvdtrain.start(), run.loader or run.progress, and run.step in it, and take at least "
            f"{request.warm_up + request.steps} steps",
        )
    return _show(read_profile(request.file).document(), request, as_json)


def _made(path: Path) -> tuple[int, int] | None:
    """What tells a file from one that replaced it."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _deliver(document: Mapping[str, Any], request: ProfileRequest, as_json: bool) -> int:
    """Writes and shows what the ranks told."""
    _write(request.file, document["profile"])
    _write(request.trace, document.get("trace"))
    return _show(document["profile"], request, as_json)


def _write(path: Path | None, document: Any) -> None:
    from hvdtrain.files import write_atomically

    if path is None:
        return
    try:
        write_atomically(path, json.dumps(document) + "\n")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from None


def _show(document: dict[str, Any], request: ProfileRequest, as_json: bool) -> int:
    from hvdtrain.scaling.fields import Fields
    from hvdtrain.scaling.profile import parse_profile
    from hvdtrain.tools.profile.table import table_lines

    if as_json:
        print(json.dumps(document))
    else:
        print("\n".join(table_lines(parse_profile(Fields(document, str(request.file))))))
    if document["steps"] < request.steps:
        tell_note(
            f"{document['steps']} of {request.steps} steps were measured: the program took no more after its "
            f"{request.warm_up} of warm-up"
        )
    tell_note(f"written to {request.file}" + (f", trace to {request.trace}" if request.trace else ""))
    return int(ExitCode.DONE)

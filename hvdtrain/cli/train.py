"""``hvdtrain train``: starts the ranks of a job, or joins as the rank that this process is."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hvdtrain.cli.elastic import check_sizes, check_unused, elastic_options, find_bounds
from hvdtrain.cli.ending_signals import ending_signals
from hvdtrain.cli.ends import show_result, tell
from hvdtrain.cli.option_types import FilledPath, RankCount, import_folders
from hvdtrain.cli.restarts import Restarts, check_restarts, restart_options
from hvdtrain.errors import ExitCode, InputError

if TYPE_CHECKING:
    from hvdtrain.cli.elastic import Bounds
    from hvdtrain.config import Job
    from hvdtrain.launch.plan import Launcher, LaunchPlan
    from hvdtrain.topology.environ import World
    from hvdtrain.train.rundir import RunDirectory


@click.command()
@click.argument("job", required=False, type=FilledPath())
@click.option(
    "-np",
    "-n",
    "--num-ranks",
    "num_ranks",
    type=RankCount(),
    help="Ranks to start; 1 if not given.",
)
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of the job file."
)
@click.option(
    "--run-dir",
    type=FilledPath(),
    help="Where the run's files go; if not given runs/NAME, or runs/NAME-2 and so on where that exists.",
)
@click.option(
    "--overwrite",
    is_flag=True,
    help="Lose the run that --run-dir holds, once the new one takes its first step.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with the run that --run-dir or runs/NAME holds, if there is one: resume=auto.",
)
@restart_options
@elastic_options
@click.option(
    "--slots",
    type=RankCount(),
    help="Ranks that this machine takes; its GPUs or cores if not given.",
)
@click.option("--launcher", default="auto", help="auto, mpirun or local.")
@click.option("--dry-run", is_flag=True, help="Print the command that would start the ranks, and stop.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON document on stdout.")
def command(job: Path | None, overrides: tuple[str, ...], resume: bool, **options: Any) -> int:
    """Train a job file's model, or without JOB a small network on handwritten digits.

    Outside a launcher this starts -np ranks. Under mpirun, srun, horovodrun or torchrun each
    process joins as the rank that it is.
    """
    from hvdtrain.jobfile import load_job
    from hvdtrain.topology.environ import find_world

    world = find_world(os.environ)
    try:
        read = load_job(job, (*overrides, *(["resume=auto"] if resume else [])))
        if options["overwrite"] and read.resume == "auto" and (resume or _sets_resume(overrides)):
            raise InputError(
                "--resume and --overwrite cannot be combined",
                do="omit --overwrite to go on with the run, or --resume to lose it",
            )
        if world.launcher == "single":
            return _launch(read, job, world.notice, **options)
        return _join(read, job, world, **options)
    except InputError:
        if world.rank > 0:
            # All ranks met the same error: rank 0 tells it, and its end ends the others.
            # Long enough for a busy machine, on which ranks do not start at the same moment.
            time.sleep(3.0)
        raise


def _sets_resume(overrides: tuple[str, ...]) -> bool:
    """Whether the command line asks to go on; over a job file's ``resume`` ``--overwrite`` has its way."""
    return any(override.partition("=")[0].strip() == "resume" for override in overrides)


def _join(job: Job, path: Path | None, world: World, **options: Any) -> int:
    """Trains as one rank of a launch that somebody else made."""
    from hvdtrain.cli.joined import check_join, follow_on, relayed
    from hvdtrain.cli.progress_view import open_view
    from hvdtrain.train.joining import join

    check_join(world, options)
    job, run_dir, overwrite = follow_on(job, options, os.environ)
    sys.path += import_folders(path)
    view = open_view(job.output.log_every_s)
    try:
        result = join(job, world, run_dir, overwrite, relayed(view, overwrite, os.environ))
    finally:
        view.close()
    if result["run_dir"] is not None:  # on rank 0, which may have been another one at the start
        show_result(result, options["as_json"])
    return int(ExitCode.DONE)


def _launch(job: Job, path: Path | None, notice: str, **options: Any) -> int:
    """Starts the ranks on this machine and stays with them."""
    from hvdtrain.cli.elastic_job import ElasticTraining
    from hvdtrain.cli.progress_view import open_view
    from hvdtrain.cli.training import Training, with_job
    from hvdtrain.launch.job import choose_launcher
    from hvdtrain.launch.machine import local_plan
    from hvdtrain.launch.restart import Trail
    from hvdtrain.train import done
    from hvdtrain.train.reopening import open_run_directory
    from hvdtrain.train.rundir import RunDirectory

    size, bounds = _size(options)
    elastic = ElasticTraining(job, path, bounds) if bounds else None
    plan = local_plan(size, options["slots"], os.environ)
    _check(job, path, size)
    if bounds:
        check_sizes(job, bounds, size)
    if options["dry_run"]:
        # As the real run: the first free name may be another one by then.
        planned = RunDirectory(options["run_dir"] or job.output.dir / job.name)
        if elastic:
            return _show_plan(*elastic.planned(plan, planned), options["as_json"])
        plan = with_job(plan, job, path, planned)
        return _show_plan(plan, choose_launcher(plan, options["launcher"]), options["as_json"])
    run = open_run_directory(job, options["run_dir"], overwrite=options["overwrite"])
    view = open_view(job.output.log_every_s)
    if run.result is not None:
        view({"event": "note", "text": done.told(run.result)})
        show_result(dict(run.result), options["as_json"])
        return int(ExitCode.DONE)
    if notice:
        view({"event": "note", "text": notice})
    restarts = Restarts(options["max_restarts"], Trail(str(run.path)))
    try:
        with ending_signals(restarts.signals):
            if elastic:
                end = elastic.run(plan, run, view)
            else:
                end = Training(job, path, run, view, restarts, options).run_lives(plan)
    except InputError:
        run.discard()
        raise
    except BaseException as error:
        _record(run, error)
        raise
    finally:
        view.close()
    if end is not None:
        return tell(end, options["as_json"])
    assert view.result is not None
    show_result(view.result, options["as_json"])
    return int(ExitCode.DONE)


def _size(options: Mapping[str, Any]) -> tuple[int, Bounds | None]:
    """Slots that a job takes of this machine; with ``--elastic`` also how many ranks there may be."""
    if not options["elastic"]:
        check_unused(options)
        size = options["num_ranks"] or 1
        check_restarts(options["max_restarts"], options["min_ranks"], size)
        return size, None
    bounds = find_bounds(options, options["num_ranks"])
    return bounds.most or bounds.start, bounds


def _record(run: RunDirectory, error: BaseException) -> None:
    """What becomes of the directory of a run whose supervisor was ended, or failed itself."""
    if run.replaces:
        run.discard()
        return
    code = 130 if isinstance(error, KeyboardInterrupt) else int(getattr(error, "code", ExitCode.FAILED))
    told = (
        f"ended by {signal.Signals(code - 128).name}" if code > 128 else f"hvdtrain itself failed: {error!r}"
    )
    run.write_failure(code, told)


def _check(job: Job, path: Path | None, size: int) -> None:
    """Refuses, before anything is made or started, what can be seen to be wrong."""
    from hvdtrain.backends.choose import choose_backend
    from hvdtrain.data.validate import validate_source
    from hvdtrain.train.preflight import check_batch, check_timeline

    check_batch(job, size)
    check_timeline(job.tuning.timeline)
    choose_backend(job.backend, size)
    sys.path += import_folders(path)
    validate_source(job.data)


def _show_plan(plan: LaunchPlan, chosen: Launcher, as_json: bool) -> int:
    from hvdtrain.launch.describe import describe_plan, masked

    if as_json:
        print(json.dumps(describe_plan(plan, chosen), indent=2))
    else:
        print(masked(chosen.command(plan)).display())
    return int(ExitCode.DONE)

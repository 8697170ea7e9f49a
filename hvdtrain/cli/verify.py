"""``hvdtrain verify``: proves that a job trains alike on several numbers of ranks."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from hvdtrain.cli.ending_signals import ending_signals
from hvdtrain.cli.option_types import FilledPath, RankCount, import_folders
from hvdtrain.errors import ExitCode, InputError


@click.command()
@click.argument("job", required=False, type=FilledPath())
@click.option(
    "-np",
    "-n",
    "sizes",
    default="1,2",
    show_default=True,
    metavar="N,N,...",
    help="Numbers of ranks; the others are compared with the first.",
)
@click.option(
    "--steps", type=click.IntRange(1, 10_000), default=5, show_default=True, help="Steps to compare."
)
@click.option(
    "--backend", metavar="NAME,...", help="Engines to compare, such as horovod,ddp; the job's if not given."
)
@click.option(
    "--tolerance",
    type=float,
    help="Largest difference that is rounding, relative to a tensor's norm; 1e-4 in fp32 if not given.",
)
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of the job file."
)
@click.option(
    "--slots", type=RankCount(), help="Ranks that this machine takes; its GPUs or cores if not given."
)
@click.option("--launcher", default="auto", help="auto, mpirun or local.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON document on stdout.")
def command(job: Path | None, overrides: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Train a few steps on several numbers of ranks and compare them step by step.

    Without JOB it is the small network on handwritten digits. Ends with 0 where all runs are equal up to the
    order of summation, with 3 where they are not: then it names the first step and the parameter that
    differ, and the likely cause.
    """
    from hvdtrain.jobfile import load_job
    from hvdtrain.tools.verify.launches import RunFailedError, plan_launches
    from hvdtrain.tools.verify.request import make_request, parse_sizes

    _refuse_launch()
    folders = import_folders(job)
    sys.path += folders
    request = make_request(
        load_job(job, overrides),
        parse_sizes(options["sizes"]),
        _words(options["backend"]),
        steps=options["steps"],
        tolerance=options["tolerance"],
        import_path=folders,
    )
    launches = plan_launches(request, options["slots"], options["launcher"], os.environ)
    try:
        with ending_signals(), tempfile.TemporaryDirectory(prefix="hvdtrain-verify-") as folder:
            from hvdtrain.tools.verify.verdict import verify

            verdict = verify(launches, Path(folder), _note)
    except RunFailedError as error:
        if error.text:
            _note(f"hvdtrain: {error.text}")
        return _tell_failure(error, as_json)
    print(json.dumps(verdict.document) if as_json else verdict.text)
    return int(ExitCode.DONE if verdict.first is None else ExitCode.GATE)


def _refuse_launch() -> None:
    """Inside somebody else's launch every rank would start launches of its own."""
    from hvdtrain.topology.environ import find_world

    world = find_world(os.environ)
    if world.launcher != "single":
        raise InputError(
            f"verify inside a launch by {world.launcher}: it launches its ranks itself",
            do="call it outside of that launch",
        )


def _words(text: str | None) -> list[str]:
    return [] if text is None else [word.strip() for word in text.split(",")]


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _tell_failure(error: Exception, as_json: bool) -> int:
    code = int(getattr(error, "code", ExitCode.FAILED))
    _note(f"hvdtrain: error: {error}")
    if as_json:
        print(json.dumps({"schema": 1, "error": str(error), "exit_code": code}))
    return code

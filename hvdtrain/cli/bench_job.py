"""``hvdtrain bench loader`` and ``bench step``: parts of a job, measured apart from each other."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hvdtrain.cli.bench_output import deliver, tell_note, words
from hvdtrain.cli.bench_ranks import Measurement, MeasuringError, find_launch, refuse_launch, tell_failure
from hvdtrain.cli.launch_options import LaunchOptions, launch_options
from hvdtrain.cli.option_types import FilledPath, import_folders
from hvdtrain.cli.placement_options import PlacementOptions, placement_options
from hvdtrain.errors import ExitCode, InputError

_STEPS = "HVDTRAIN_BENCH_STEPS"  # named here and in tools.bench_step, which needs torch
_SET = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of the job file."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="End with one JSON document on stdout.")
_DRY = click.option("--dry-run", is_flag=True, help="Print the command that would start the ranks, and stop.")
_LOADER_EXAMPLES = (
    "\b\n"
    "hvdtrain bench loader job.yaml\n"
    "hvdtrain bench loader job.yaml --workers 0,4,8 --batches 200 --json\n"
)
_STEP_EXAMPLES = (
    "\b\n"
    "hvdtrain bench step job.yaml -np 2\n"
    "hvdtrain bench step job.yaml -H node1:2,node2:2 --steps 100 --json\n"
)


@click.command(epilog=_LOADER_EXAMPLES)
@click.argument("job", required=False, type=FilledPath())
@click.option("--workers", default="0,1,2,4", show_default=True, metavar="N,N,...", help="Worker processes.")
@click.option(
    "--batches", type=click.IntRange(1, 1_000_000), default=50, show_default=True, help="Batches to time."
)
@_SET
@_JSON
def loader(job: Path | None, workers: str, batches: int, overrides: tuple[str, ...], as_json: bool) -> int:
    """Time a job's loader alone: samples/s of one rank for each number of worker processes.

    Without JOB it is the small network on handwritten digits.
    """
    from hvdtrain.jobfile import load_job

    refuse_launch("bench loader")
    counts = _counts(workers)
    folders = import_folders(job)
    sys.path += folders
    read = load_job(job, overrides)
    from hvdtrain.tools.bench_loader import bench_loader, loader_line, loader_title

    if not as_json:
        print(loader_title(read), flush=True)

    def show(row: Mapping[str, Any]) -> None:
        print(loader_line(row), file=sys.stderr if as_json else sys.stdout, flush=True)

    document = bench_loader(read, counts, batches, show)
    deliver(document, None, as_json)
    return int(ExitCode.DONE)


@click.command(epilog=_STEP_EXAMPLES)
@click.argument("job", required=False, type=FilledPath())
@placement_options
@launch_options
@click.option(
    "--steps", type=click.IntRange(1, 1_000_000), default=30, show_default=True, help="Steps of each kind."
)
@_SET
@_DRY
@_JSON
def step(
    job: Path | None,
    placement: PlacementOptions,
    launch: LaunchOptions,
    steps: int,
    overrides: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> int:
    """Time a job's step with one batch that is in memory, and with its loader.

    Without JOB it is the small network on handwritten digits. Nothing is evaluated, saved or kept.
    """
    from hvdtrain.jobfile import load_job
    from hvdtrain.train.launching import rank_program
    from hvdtrain.train.preflight import check_batch

    if find_launch(placement, launch) is not None:
        raise InputError("bench step starts its ranks itself", do="call it outside of the launch")
    folders = import_folders(job)
    read = load_job(job, (*overrides, "resume=never"))
    _, env = rank_program(read, None, folders)
    measurement = Measurement(
        "hvdtrain.tools.bench_step",
        {**env, _STEPS: str(steps)},
        placement,
        launch,
        lambda size: check_batch(read, size),
    )
    if dry_run:
        return measurement.show(as_json)
    try:
        document = measurement.run(lambda event: tell_note(event["text"]))
    except MeasuringError as error:
        return tell_failure(error, as_json)
    if not as_json:
        print("\n".join(_step_lines(document)))
    deliver(document, None, as_json)
    return int(ExitCode.DONE)


def _counts(text: str) -> tuple[int, ...]:
    """Numbers of worker processes."""
    named = words(text)
    for word in named:
        is_number = word.isdecimal() and word.isascii() and len(word) <= 18
        if not (is_number and int(word) <= 1024) or named.count(word) > 1:
            raise InputError(f"{word!r}", where="--workers", legal="different numbers from 0 to 1024: 0,2,4")
    return tuple(map(int, named))


def _step_lines(document: Mapping[str, Any]) -> list[str]:
    """The document as a table."""
    lines = [
        f"{document['job']}: {document['size']} x {document['backend']} on {document['device']}, "
        f"global batch {document['global_batch']}, {document['steps']} steps each",
        f"{'':<12} {'median (s)':>11} {'mean (s)':>11} {'95 % (s)':>11} {'samples/s':>11}",
    ]
    for key in ("in_memory", "with_loader"):
        times = document[key]
        rate = document["global_batch"] / times["median_s"]
        columns = [f"{times[name]:>11.5f}" for name in ("median_s", "mean_s", "p95_s")]
        lines.append(f"{key.replace('_', ' '):<12} {' '.join(columns)} {rate:>11.1f}")
    share, workers = 100 * document["data_share"], document["workers"]
    return [*lines, f"{share:.0f} % of the step with the loader is its data's ({workers} workers)"]

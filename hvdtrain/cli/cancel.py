"""``hvdtrain cancel``: ends Slurm jobs."""

from __future__ import annotations

import json
import os

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
def command(as_json: bool, jobs: tuple[str, ...]) -> None:
    """End Slurm jobs, or take them out of the queue."""
    from hvdtrain.launch.queue import cancel, check_job

    cancel([check_job(job) for job in jobs], os.environ)
    print(json.dumps({"schema": 1, "cancelled": jobs}) if as_json else f"cancelled: {', '.join(jobs)}")

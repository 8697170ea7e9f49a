"""``hvdtrain jobs``: the user's jobs in Slurm's queue."""

from __future__ import annotations

import json
import os

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
def command(as_json: bool, jobs: tuple[str, ...]) -> None:
    """List your Slurm jobs, or only those that are named, with their states.

    A state that Slurm does not tell, or that nobody knows, is UNKNOWN.
    """
    from dataclasses import asdict

    from hvdtrain.launch.queue import check_job, find_jobs, own_jobs

    if jobs:
        found = [one for job in jobs for one in find_jobs(check_job(job), os.environ)]
    else:
        found = own_jobs(os.environ)
    if as_json:
        print(json.dumps({"schema": 1, "jobs": [asdict(one) for one in found]}))
        return
    rows = [("JOB", "STATE", "CODE", "ELAPSED", "NODES", "NAME")]
    for one in found:
        code = "" if one.code is None else str(one.code)
        # Control characters of a name would move the cursor.
        name = one.name.encode("unicode_escape").decode() if not one.name.isprintable() else one.name
        rows.append((one.job, one.state, code, one.elapsed, one.nodes, name))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

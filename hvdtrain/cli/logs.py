"""``hvdtrain logs``: the output of a Slurm job."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from hvdtrain.errors import ExitCode, LaunchError


@click.command()
@click.option("-f", "--follow", "follows", is_flag=True, help="Go on until the job ended.")
@click.option("--json", "as_json", is_flag=True, help="Name the files, as one JSON document on stdout.")
@click.argument("job")
def command(job: str, follows: bool, as_json: bool) -> int:
    """Show the output of a Slurm job, or of all elements of an array of jobs.

    With -f the command ends with the job's exit code.
    """
    from hvdtrain.launch.follow import Tail, follow, joint_code
    from hvdtrain.launch.queue import check_job, log_of
    from hvdtrain.launch.records import recorded_logs

    files = log_of(check_job(job), os.environ) or recorded_logs(job, os.environ)
    if not files:
        raise LaunchError(f"nothing tells where the output of job {job} is: Slurm does not know the job")
    if as_json:
        print(json.dumps({"schema": 1, "job": job, "files": files}))
        return int(ExitCode.DONE)
    tail = Tail(job, os.environ, _show, [Path(file) for file in files])
    if follows:
        return joint_code(follow(job, os.environ, tail, on_trouble=_tell))
    missing = [file for file in files if not Path(file).exists()]
    tail.pass_on()
    if len(missing) == len(files):
        raise LaunchError(f"job {job} has written no output yet: {', '.join(missing)}")
    return int(ExitCode.DONE)


def _show(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _tell(text: str) -> None:
    print(f"hvdtrain: {text}", file=sys.stderr)

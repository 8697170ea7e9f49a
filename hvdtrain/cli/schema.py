"""``hvdtrain schema``: what a job file may hold."""

from __future__ import annotations

import json

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Accepted for uniformity: the output is JSON.")
def command(as_json: bool) -> None:  # noqa: ARG001
    """Print the JSON schema of the job file."""
    from hvdtrain.config import Job

    print(json.dumps(Job.model_json_schema(by_alias=True), indent=2))

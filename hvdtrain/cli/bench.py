"""``hvdtrain bench``: measures the network, the data and the step of a job, each for itself."""

from __future__ import annotations

import click

from hvdtrain.cli.bench_job import loader, step
from hvdtrain.cli.bench_network import allreduce, import_

_EXAMPLES = (
    "\b\n"
    "hvdtrain bench allreduce -np 4                      a network, by its ranks\n"
    "hvdtrain bench import all_reduce_perf.txt --json    the same from nccl-tests' or OSU's output\n"
    "hvdtrain bench loader job.yaml --workers 0,2,4      samples/s without training\n"
    "hvdtrain bench step job.yaml -np 2                  a step with and without the loader\n"
)


@click.group(epilog=_EXAMPLES)
def command() -> None:
    """Measure the network, the data and the step of a job."""


for verb in (allreduce, import_, loader, step):
    command.add_command(verb)

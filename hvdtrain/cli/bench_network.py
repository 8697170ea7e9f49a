"""``hvdtrain bench allreduce`` and ``bench import``: the network, measured here or by another benchmark."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hvdtrain.cli.bench_output import deliver, tell_note, words
from hvdtrain.cli.bench_ranks import Measurement, MeasuringError, find_launch, tell_failure, told_once
from hvdtrain.cli.documents import NETWORK
from hvdtrain.cli.launch_options import LaunchOptions, launch_options
from hvdtrain.cli.option_types import FilledPath, RankCount, refuse_nan
from hvdtrain.cli.placement_options import PlacementOptions, placement_options
from hvdtrain.cli.targets import check_target
from hvdtrain.errors import ExitCode, InputError

if TYPE_CHECKING:
    from hvdtrain.measure.allreduce_request import AllreduceRequest

_REQUEST = "HVDTRAIN_BENCH_REQUEST"  # named here and in tools.bench_allreduce, which needs torch
_SAVE = click.option("--save", type=FilledPath(), metavar="FILE", help="Write the JSON document there too.")
_JSON = click.option("--json", "as_json", is_flag=True, help="End with one JSON document on stdout.")
_DRY = click.option("--dry-run", is_flag=True, help="Print the command that would start the ranks, and stop.")
_ALLREDUCE_EXAMPLES = (
    "\b\n"
    "hvdtrain bench allreduce -np 2\n"
    "hvdtrain bench allreduce -H node1:4,node2:4 --json > network.json\n"
    "hvdtrain bench allreduce -np 2 --library horovod --tune cycle_ms=0.1 --sizes 8B..1MB\n"
    "srun --mpi=pmix hvdtrain bench allreduce\n"
)
_IMPORT_EXAMPLES = (
    "\b\n"
    "hvdtrain bench import all_reduce_perf.txt --json > network.json\n"
    "hvdtrain bench import osu_allreduce.txt -H node1:4,node2:4\n"
)


@click.command("allreduce", epilog=_ALLREDUCE_EXAMPLES)
@placement_options
@launch_options
@click.option(
    "--sizes",
    metavar="8B..256MB",
    help="Sizes of the buffers: ranges and lists; K, M and G are powers of 1024. Default: 8B..256MB on GPUs, "
    "8B..32MB on CPUs.",
)
@click.option(
    "--factor",
    type=click.Choice(["2", "4"]),
    default="4",
    show_default=True,
    help="From one size to the next.",
)
@click.option("--dtype", default="float32", show_default=True, help="float32, float16 or float32,float16.")
@click.option("--library", help="horovod, mpi, torch or a list of them; default: all that are there.")
@click.option(
    "--repeat",
    type=click.IntRange(1, 100_000),
    default=200,
    show_default=True,
    help="Repetitions of a size, at most.",
)
@click.option(
    "--limit",
    "limit_s",
    type=click.FloatRange(1, 86_400),
    callback=refuse_nan,
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="About how long it may take: large sizes get fewer repetitions, and those of the default range may "
    "be left out.",
)
@_SAVE
@_DRY
@_JSON
def allreduce(
    placement: PlacementOptions,
    launch: LaunchOptions,
    save: Path | None,
    dry_run: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Time allreduces over the ranks, and fit latency and bandwidth to them.

    In place, sums checked, medians over repetitions, columns as nccl-tests defines them. On several hosts it
    measures all ranks, and those of one host.
    """
    with told_once():
        request = _request(given, on_cpu=launch.gpus is False)
        world = find_launch(placement, launch)
        if world is None or world.rank == 0:  # which alone writes
            check_target("--save", save, kind=NETWORK)
        if world is not None and dry_run:
            raise InputError("--dry-run inside a launch: the ranks run already", do="omit --dry-run")
    view = _AllreduceView(as_json, save)
    if world is not None:
        from hvdtrain.tools.bench_allreduce import join

        join(request, world, view)
        return int(ExitCode.DONE)
    measurement = Measurement(
        "hvdtrain.tools.bench_allreduce",
        {_REQUEST: request.to_json()},
        placement,
        launch,
        _check_size,
    )
    if dry_run:
        return measurement.show(as_json)
    try:
        view.finish(measurement.run(view))
    except MeasuringError as error:
        return tell_failure(error, as_json)
    return int(ExitCode.DONE)


def _check_size(size: int) -> None:
    if size < 2:
        raise InputError("an allreduce over 1 rank moves nothing", where="-np", legal="2 or more")


def _request(given: Mapping[str, Any], *, on_cpu: bool) -> AllreduceRequest:
    from hvdtrain.measure.allreduce_request import AllreduceRequest, check_request, parse_sizes

    sizes, factor = given["sizes"], int(given["factor"])
    request = AllreduceRequest(
        () if sizes is None else parse_sizes(sizes, factor),
        factor,
        words(given["dtype"]),
        words(given["library"]),
        given["repeat"],
        given["limit_s"],
        on_cpu,
    )
    check_request(request)
    return request


class _AllreduceView:
    """Shows rows as they come and the document at the end; with ``--json`` the rows are on stderr."""

    def __init__(self, as_json: bool, save: Path | None) -> None:
        self._as_json, self._save = as_json, save
        self._stream = sys.stderr if as_json else sys.stdout

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Takes an event of rank 0."""
        from hvdtrain.measure.network_table import header, row_line

        if event["event"] == "note":
            tell_note(event["text"])
        elif event["event"] == "begin":
            for line in header(event["hosts"], event["size"]):
                self._say(line)
        elif event["event"] == "row":
            self._say(row_line(event))
        elif event["event"] == "result":
            self.finish(event["document"])

    def finish(self, document: Mapping[str, Any]) -> None:
        """Shows the fits, and writes the document where it is to go."""
        from hvdtrain.measure.network_table import fit_line

        for fit in document["fits"]:
            self._say(fit_line(fit))
        deliver(document, self._save, self._as_json)

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


@click.command("import", epilog=_IMPORT_EXAMPLES)
@click.argument("file", type=FilledPath())
@click.option("-np", "-n", "--num-ranks", "num_ranks", type=RankCount(), help="Ranks, all of one host.")
@click.option("-H", "--hosts", metavar="a:2,b:2", help="Hosts and ranks, where the file does not tell them.")
@_SAVE
@_JSON
def import_(file: Path, num_ranks: int | None, hosts: str | None, save: Path | None, as_json: bool) -> int:
    """Read what all_reduce_perf of nccl-tests or osu_allreduce printed."""
    from hvdtrain.measure.import_network import import_network
    from hvdtrain.measure.network_table import fit_line, header, row_line
    from hvdtrain.topology.hostfile import parse_host_list

    if num_ranks and hosts:
        raise InputError("-np and -H both tell the number of ranks", do="omit -np")
    check_target("--save", save, file, kind=NETWORK)
    layout = [(host.name, host.slots) for host in parse_host_list(hosts, ()).hosts] if hosts else []
    document = import_network(file, layout or ([("localhost", num_ranks)] if num_ranks else []))
    for note in document["notes"]:
        tell_note(note)
    if not as_json:
        lines = header([(host["name"], host["ranks"]) for host in document["hosts"]], document["size"])
        for line in (*lines, *map(row_line, document["rows"]), *map(fit_line, document["fits"])):
            print(line)
    deliver(document, save, as_json)
    return int(ExitCode.DONE)

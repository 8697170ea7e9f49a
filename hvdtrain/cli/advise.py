"""``hvdtrain advise``: whether more GPUs are worth it, from a profile or from measured throughputs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click
from click.types import FloatParamType

from hvdtrain.cli.advise_measured import OF_MEASURED, OF_PROFILE, answer_measured
from hvdtrain.cli.bench_output import tell_note
from hvdtrain.cli.documents import PAGE
from hvdtrain.cli.option_types import FilledPath, FilledText, RankCount
from hvdtrain.cli.targets import check_target
from hvdtrain.errors import ExitCode, InputError


class Amount(FloatParamType):
    """A number, at least 0 or above it, and at most ``high``: what is made of several is finite then."""

    name = "number"

    def __init__(self, *, zero: bool = False, high: float = 1e15, is_share: bool = False) -> None:
        self.zero, self.high, self.is_share = zero, high, is_share

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, or click's usage error."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not ((number > 0 or (self.zero and number == 0)) and number <= self.high):
            bound = "of at least 0" if self.zero else "above 0"
            told = f"must be a number {bound} and at most {self.high:g}, found {str(value)!r}"
            self.fail(told + (self._hint(str(value)) if self.is_share else ""), param, ctx)
        return number

    @staticmethod
    def _hint(text: str) -> str:
        """What a percentage is as a fraction; nothing for what is no percentage either."""
        try:
            percent = float(text.strip().removesuffix("%"))
        except ValueError:
            return ""
        return f"; it is a fraction: {percent / 100:g} for {percent:g} %" if 0 < percent <= 100 else ""


@click.command()
@click.argument("profile", required=False, type=FilledPath())
@click.option(
    "--network",
    type=FilledText(),
    metavar="FILE|NAME",
    help="File of `hvdtrain bench allreduce --json`, or a name: 25GbE, 25GbE-RDMA, 100GbE-CPU, "
    "InfiniBand HDR, 8xHDR, EFA, NVLink3, PCIe3; NVLink+25GbE for inside and between nodes; 1GbE@2ms adds a "
    "delay; one's own: 200Mbit/s@1ms, or 12.5GB/s@20us for what an allreduce reaches.",
)
@click.option(
    "--max-gpus",
    type=RankCount(),
    help="Largest number of GPUs; 64 if not given, with --measured 8 times the largest row.",
)
@click.option("--gpus-per-node", type=RankCount(), help="GPUs of a full node; 8 if not told.")
@click.option("--price", type=Amount(zero=True), help="Price of a GPU-hour, in any currency.")
@click.option("--energy-price", type=Amount(zero=True), help="With a profile: price of a kilowatt-hour.")
@click.option("--deadline", type=Amount(), metavar="H", help="Hours to finish in; exit code 3 if none can.")
@click.option("--budget", type=Amount(), metavar="B", help="Cost to finish at; exit code 3 if none can.")
@click.option(
    "--min-efficiency",
    type=Amount(high=1.0, is_share=True),
    metavar="X",
    help="Least efficiency, from 0 to 1, at the largest number of GPUs; exit code 3 below it.",
)
@click.option(
    "--target-steps", type=click.IntRange(1, 10**12), help="With a profile: steps of its global batch to do."
)
@click.option(
    "--measured", metavar="GPUS:RATE,...", help="Samples/s that were measured, such as 1:872,8:6679."
)
@click.option("--params", metavar="N", help="With --measured: parameters, such as 25.6M.")
@click.option(
    "--batch-per-gpu", type=Amount(), metavar="B", help="With --measured: samples of a micro-batch."
)
@click.option(
    "--accumulate", type=click.IntRange(1, 1_000_000), help="With --measured: micro-batches a step."
)
@click.option("--predict", metavar="N,...", help="With --measured: numbers of GPUs to predict.")
@click.option(
    "--compression",
    type=click.Choice(["none", "fp16", "bf16"]),
    help="With --measured: how gradients go over the network.",
)
@click.option(
    "--samples",
    type=FilledText(),
    metavar="N",
    help="With --measured: samples to do in all, for --deadline, --budget and the cost, of 1M if not given.",
)
@click.option("--html", type=FilledPath(), metavar="FILE", help="Write a page with pictures to FILE.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(profile: Path | None, measured: str | None, as_json: bool, **options: Any) -> int:
    """Tell whether more GPUs are worth it, what limits, and what to do first.

    From PROFILE, the profile.json of `hvdtrain profile`, or from throughputs that somebody measured. Ends
    with 3 where a limit that was set does not hold.

    \b
    hvdtrain advise profile.json --network 25GbE --max-gpus 32 --price 2.5
    hvdtrain advise profile.json --network network.json --min-efficiency 0.8 --json --html advice.html
    hvdtrain advise --measured 1:872,8:6679 --params 25.6M --gpus-per-node 8 --network 25GbE --predict 16,32
    hvdtrain advise --measured 4:350 --params 110M --network net.json+200Mbit/s@1ms --samples 10M --deadline 8
    """  # noqa: D301 - \b is click's
    _check_mode(profile, measured, options)
    network = options["network"] or ""
    read = [name for name in (network, network.rpartition("+")[0]) if name]  # a file may have a link after it
    inputs = (*([profile] if profile else ()), *map(Path, read))
    check_target("--html", options["html"], *inputs, kind=PAGE)
    if measured is not None:
        return _from_measured(measured, options, as_json)
    assert profile is not None
    return _from_profile(profile, options, as_json)


def _check_mode(profile: Path | None, measured: str | None, options: dict[str, Any]) -> None:
    """One source, and only options of it: none is passed over in silence."""
    if (profile is None) == (measured is None):
        what = "a profile and --measured, both" if profile else "neither a profile nor --measured"
        raise InputError(f"{what} given", legal="PROFILE, or --measured GPUS:RATE,...")
    other = OF_PROFILE if profile is None else dict.fromkeys(OF_MEASURED, "")
    for name, do in other.items():
        if options[name] is not None:
            of = "a profile" if profile is None else "--measured"
            raise InputError(f"goes with {of} only", where=f"--{name.replace('_', '-')}", do=do)


def _from_profile(path: Path, options: dict[str, Any], as_json: bool) -> int:
    from hvdtrain.scaling.advice_document import advice_document
    from hvdtrain.scaling.advise import Request, advise
    from hvdtrain.scaling.profile import read_profile

    request = Request(
        network=options["network"],
        max_gpus=options["max_gpus"] or 64,
        gpus_per_node=options["gpus_per_node"],
        price=options["price"],
        energy_price=options["energy_price"],
        deadline_h=options["deadline"],
        budget=options["budget"],
        min_efficiency=options["min_efficiency"],
        target_steps=options["target_steps"],
    )
    advice = advise(read_profile(path), request)
    _show(advice_document(advice), as_json, options["html"])
    return int(ExitCode.GATE if advice.is_refused else ExitCode.DONE)


def _from_measured(text: str, options: dict[str, Any], as_json: bool) -> int:
    document, is_refused = answer_measured(text, options)
    _show(document, as_json, options["html"])
    return int(ExitCode.GATE if is_refused else ExitCode.DONE)


def _show(document: dict[str, Any], as_json: bool, page: Path | None) -> None:
    if page:
        from hvdtrain.cli.report import write_page
        from hvdtrain.report.page import advice_page

        write_page(page, advice_page(document))
        tell_note(f"written to {page}")
    if as_json:
        print(json.dumps(document, allow_nan=False))
        return
    from hvdtrain.cli.advise_tables import show_advice

    show_advice(document)

"""The tables that ``hvdtrain calibrate`` prints from its documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from hvdtrain.cli.advise_tables import time_text

_FILE_WIDTH = 120
_LEAST_SHARE = 0.005  # of the variance: what would show as 0 %


def show_proposal(document: Mapping[str, Any]) -> None:
    """The verdict, the runs, and what they do to the prediction."""
    console = _console()
    _say(console, document["verdict"])
    if document["runs"]:
        console.print(_runs(document["runs"]))
    if document["predictions"]:
        console.print(_expected(document["predictions"]))
        parts = [one for one in document["unknowns"] if one["share"] >= _LEAST_SHARE]
        told = ", ".join(
            f"{one['name']} {_percent(one['share'])}"
            for one in sorted(parts, key=lambda one: -float(one["share"]))
        )
        _say(console, f"- the band at {document['max_gpus']} GPUs comes from: {told} (of its variance)")
    others = [
        one for one in document["weighed"] if one["name"] not in {run["name"] for run in document["runs"]}
    ]
    if others:
        told = ", ".join(f"{one['name']} {_points(one['gain'])}" for one in others)
        _say(console, f"- what other runs would take off the band, each alone: {told}")
    if not document["runs"]:
        return
    if "folder" in document:
        _say(
            console,
            f"- scripts: {document['folder']}; submit each with sbatch, then: "
            f"hvdtrain calibrate --read {document['folder']}",
        )
    else:
        _say(console, "- --out DIR writes their batch scripts")


def show_results(document: Mapping[str, Any]) -> None:
    """The verdict, each run's state, predicted beside measured, the present prediction beside the former."""
    console = _console()
    _say(console, document["verdict"])
    for run in document["runs"]:
        _say(console, f"{run['name']}: {run['state']}" + (f" ({run['note']})" if run["note"] else ""))
    if any(run["compared"] for run in document["runs"]):
        console.print(_compared(document["runs"]))
    console.print(_now(document["predictions"]))
    if document["others"]:
        _say(console, f"- no results of this calibration, and not read: {', '.join(document['others'])}")
    _say(console, f"- for advice: hvdtrain advise {document['calibrated']}")


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_FILE_WIDTH)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _runs(runs: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(["run", "nodes", "GPUs each", "takes", "GPU-minutes", "alone", "tells"])
    for run in runs:
        table.add_row(
            run["name"],
            str(run["nodes"]),
            str(run["ranks_per_node"]),
            time_text(run["duration_s"]),
            f"{run['gpu_minutes']:.3g}",
            _points(run["gain"]),
            ", ".join(run["tells"]),
        )
    return table


def _expected(predictions: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(["GPUs", "efficiency", "band now", "expected after"])
    for row in predictions:
        table.add_row(
            str(row["gpus"]),
            _percent(row["efficiency"]),
            _band(row["efficiency_low"], row["efficiency_high"]),
            _band(row["expected_low"], row["expected_high"]),
        )
    return table


def _compared(runs: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(["run", "figure", "predicted", "band", "measured", "off"])
    for run in runs:
        for one in run["compared"]:
            has_band = one["predicted_low"] != one["predicted_high"]
            low, high = (_figure(one[name], one["unit"]) for name in ("predicted_low", "predicted_high"))
            table.add_row(
                run["name"],
                one["figure"],
                _figure(one["predicted"], one["unit"]),
                f"{low} to {high}" if has_band else "",
                _figure(one["measured"], one["unit"]),
                "" if one["off"] is None else f"{100 * one['off']:+.0f} %",
            )
    return table


def _now(predictions: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(["GPUs", "step", "efficiency", "band", "former efficiency", "former band"])
    for row in predictions:
        table.add_row(
            str(row["gpus"]),
            time_text(row["step_time_s"]),
            _percent(row["efficiency"]),
            _band(row["efficiency_low"], row["efficiency_high"]),
            _percent(row["former_efficiency"]),
            _band(row["former_low"], row["former_high"]),
        )
    return table


def _table(columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="left" if column in ("run", "figure", "tells") else "right")
    return table


def _figure(value: float, unit: str) -> str:
    if unit == "B/s":
        return f"{value / 1e9:.3g} GB/s"
    return f"{value * 1e6:.3g} us" if value < 1e-3 else time_text(value)


def _band(low: float, high: float) -> str:
    return f"{_percent(low)} to {_percent(high)}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _points(gain: float) -> str:
    return f"{100 * gain:.1f} points"

"""The tables that ``hvdtrain advise`` prints from its document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

_FILE_WIDTH = 120
_CAUSES = {"data": "load", "imbalance": "imbalance", "straggler": "stragglers"}


def show_advice(document: dict[str, Any]) -> None:
    """Prints the verdict first, then what it rests on."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_FILE_WIDTH)  # a file has no width to wrap at
    console.print(document["verdict"], markup=False, soft_wrap=True)
    console.print(_rows(document))
    if "waterfall" in document:
        console.print(_waterfall(document["waterfall"]))
    if document["what_if"]:
        console.print(_what_if(document["what_if"]))
    for gate in document.get("gates", ()):
        console.print(
            f"{'ok' if gate['holds'] else 'REFUSED'}: {gate['sentence']}", markup=False, soft_wrap=True
        )
    for note in document["notes"]:
        console.print(f"- {note}", markup=False, soft_wrap=True)


def _rows(document: dict[str, Any]) -> Table:
    """Measured and predicted numbers of GPUs; the recommended one is marked."""
    from_profile = document["source"] == "profile"
    predictions = document["predictions"]
    columns = ["GPUs", "step", "samples/s", "efficiency", "band"]
    samples = document.get("samples")  # of measured throughputs; a profile's rows tell their time
    is_timed = samples is not None or (from_profile and predictions[0]["time_s"] is not None)
    is_paid = predictions[0]["cost"] is not None
    table = _table([*columns, *(["time to finish"] if is_timed else []), *(["cost"] if is_paid else [])])
    for row in [] if from_profile else document["measured"]:
        told = "left out" if row["left_out"] else "measured"
        cells = [str(row["gpus"]), "", f"{row['throughput']:,.6g}", _percent(row["efficiency"]), told]
        cells += [time_text(samples / row["throughput"])] if is_timed else []
        table.add_row(*cells, *([f"{row['cost']:,.4g}"] if is_paid else []))
    for row in predictions:
        mark = "*" if row["gpus"] == document["recommended_gpus"] else ""
        cells = [
            f"{mark}{row['gpus']}",
            time_text(row["step_time_s"]),
            f"{row['throughput']:,.5g}",
            _percent(row["efficiency"]),
            f"{_percent(row['efficiency_low'])} to {_percent(row['efficiency_high'])}",
        ]
        if is_timed and not from_profile:
            cells.append(time_text(samples / row["throughput"]))
        elif is_timed:
            middle, low, high = (time_text(row[f"time_{one}s"]) for one in ("", "low_", "high_"))
            cells.append(f"{middle} ({low} to {high})")
        if is_paid:
            cells.append(f"{row['cost']:,.4g}")
        table.add_row(*cells)
    return table


def _waterfall(waterfall: dict[str, Any]) -> Table:
    """Where efficiency goes; the bars and what is left sum to 100 %."""
    table = _table([f"at {waterfall['gpus']} GPUs", "share of the step"])
    for bar in waterfall["bars"]:
        table.add_row(_CAUSES.get(bar["cause"], bar["cause"]), f"{_minus(bar['share'])} %")
    table.add_row("left of GPUs that never wait", f"{100 * waterfall['efficiency']:.1f} %")
    return table


def _what_if(changes: Sequence[dict[str, Any]]) -> Table:
    table = _table(["what if", "samples/s", "gain"])
    for one in changes:
        rate = one["samples_per_s"] if "samples_per_s" in one else one["throughput"]
        table.add_row(one["change"], f"{rate:,.5g}", f"+{100 * one['gain']:.1f} %")
    return table


def _table(columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column, justify="left" if column in ("what if",) or column.startswith("at ") else "right"
        )
    return table


def _minus(share: float) -> str:
    text = f"{100 * share:.1f}"
    return text if text in ("0.0", "-0.0") else f"-{text}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def time_text(seconds: float) -> str:
    """Seconds in the unit that suits: 83 ms, 1.2 s, 35 min, 7.4 h, 3.1 d."""
    for limit, unit, size in (
        (1.0, "ms", 1e-3),
        (120.0, "s", 1.0),
        (7200.0, "min", 60.0),
        (172_800.0, "h", 3600.0),
    ):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 86_400:.3g} d"

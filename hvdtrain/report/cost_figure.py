"""Draws cost against time, the recommended number of GPUs circled."""

from __future__ import annotations

from dataclasses import dataclass

from hvdtrain.report.advice_record import AdviceRecord, Row
from hvdtrain.report.content import Cell, Column, Figure, Key, table_of
from hvdtrain.report.numbers import counted, short, time_text
from hvdtrain.report.plot import Axis, Line, Mark, Plot
from hvdtrain.report.scale import time_ticks

_MILLION = 1e6
_SECONDS_AN_HOUR = 3600.0


@dataclass(frozen=True)
class _Units:
    """What can be told: the time to finish, or for a million samples; its cost, or its GPU-hours."""

    is_timed: bool
    is_paid: bool

    @property
    def work(self) -> str:
        return "to finish" if self.is_timed else "for a million samples"

    @property
    def unit(self) -> str:
        return "cost" if self.is_paid else "GPU-hours"

    def place(self, row: Row) -> tuple[float, float]:
        """Seconds, and what they cost."""
        time_s = row.time_s.value if self.is_timed and row.time_s else _MILLION / row.throughput
        if self.is_paid and row.cost:
            return time_s, row.cost.value
        return time_s, row.gpus * time_s / _SECONDS_AN_HOUR

    def told(self, row: Row) -> str:
        time_s, cost = self.place(row)
        return f"{time_text(time_s)}, {'cost ' if self.is_paid else ''}{short(cost)}" + (
            "" if self.is_paid else " GPU-hours"
        )


def cost_figure(advice: AdviceRecord) -> Figure:
    """Cost against time: to finish where the job's steps are known, else for a million samples."""
    rows = advice.rows
    is_timed = all(row.time_s for row in rows)
    # A cost without a time to finish is of a number of samples that the document does not tell.
    units = _Units(is_timed, is_timed and all(row.cost for row in rows))
    places = [units.place(row) for row in rows]
    knee = next((i for i, row in enumerate(rows) if row.gpus == advice.recommended), None)
    fastest = min(rows, key=lambda row: units.place(row)[0])
    summary = f"Fastest with {counted(fastest.gpus, 'GPU')}: {units.told(fastest)}"
    if knee is not None and rows[knee] is not fastest:
        summary += f"; with the recommended {rows[knee].gpus:,}: {units.told(rows[knee])}"
    order = sorted(range(len(rows)), key=lambda i: places[i])
    tips = [f"{counted(rows[i].gpus, 'GPU')}: {units.told(rows[i])}" for i in order]
    times = [time_s for time_s, _ in places]
    plot = Plot(
        "cost",
        f"{units.unit[0].upper()}{units.unit[1:]} against time {units.work}",
        f"{summary}.",
        Axis(f"time {units.work}", time_text, is_log=True, ticks=time_ticks(min(times), max(times))),
        Axis(f"{units.unit}; the numbers are GPUs", from_zero=True),
        [Line(units.unit, "one", [places[i] for i in order], has_dots=True, tips=tips)],
        marks=[Mark(*places[i], f"{row.gpus:,}", i == knee) for i, row in enumerate(rows)],
    )
    columns = [
        Column("gpus", "GPUs"),
        Column("time_s", f"time {units.work}"),
        Column("cost" if units.is_paid else "gpu_hours", units.unit),
    ]
    cells = [
        [Cell(row.gpus, f"{row.gpus:,}"), Cell(time_s, time_text(time_s)), Cell(cost, short(cost))]
        for row, (time_s, cost) in zip(rows, places, strict=True)
    ]
    legend = (Key("recommended", "ring", "dot"),) if knee is not None else ()
    return Figure(plot.key, plot.title, plot.summary, plot.draw(), table_of(columns, cells, knee), legend)

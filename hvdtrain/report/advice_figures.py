"""Draws advice: efficiency with its band, where it goes, samples a second, what a change would gain."""

from __future__ import annotations

from collections.abc import Callable

from hvdtrain.report.advice_record import AdviceRecord, Band, Row, Waterfall
from hvdtrain.report.bars import Bar, Words, draw_bars, draw_waterfall
from hvdtrain.report.content import NOTHING, Cell, Column, Figure, Key, Table, table_of
from hvdtrain.report.numbers import counted, percent, short, span_text, time_text
from hvdtrain.report.plot import Area, Axis, Line, Mark, Plot, Point
from hvdtrain.report.scale import wants_log
from hvdtrain.report.step_parts import CAUSES

_MOST_CHANGES = 8
_SEEN = 5e-4  # of the step: a smaller share is told as 0.0 %
_WASTE = 0.995  # of the efficiency: above it a second line would hide the first


def efficiency_figure(advice: AdviceRecord) -> Figure:
    """Efficiency by number of GPUs with band, measured points and recommendation; the table has it all."""
    rows, last = advice.rows, advice.rows[-1]
    summary = (
        f"{percent(last.efficiency.value)} at {counted(last.gpus, 'GPU')}{_between(last.efficiency)}, "
        f"relative to {counted(advice.relative_to, 'GPU')}."
    )
    lines, keys = _efficiency_lines(advice)
    marks = [
        Mark(
            row.gpus,
            row.efficiency.value,
            f"{counted(row.gpus, 'GPU')}: {percent(row.efficiency.value, 0)}",
            True,
        )
        for row in rows
        if row.gpus == advice.recommended
    ]
    highs = [row.efficiency.high for row in rows] + [point.efficiency for point in advice.measured]
    y = Axis(
        "efficiency",
        lambda share: percent(share, 0),
        from_zero=True,
        high=1.08 * max(1.0, *highs),
        ticks=(0, 0.25, 0.5, 0.75, 1),
    )
    band = Area("band", "band one", [(row.gpus, row.efficiency.low, row.efficiency.high) for row in rows])
    title = "Efficiency by number of GPUs"
    plot = Plot("efficiency", title, summary, _gpu_axis(advice), y, lines, [band], marks)
    table = _predictions(advice)
    return Figure(plot.key, title, summary, plot.draw(), table, keys, is_table_shown=True, room="wide")


def _efficiency_lines(advice: AdviceRecord) -> tuple[list[Line], tuple[Key, ...]]:
    rows = advice.rows
    tips = [
        f"{counted(row.gpus, 'GPU')}: {percent(row.efficiency.value)}{_between(row.efficiency)}"
        for row in rows
    ]
    points = [(row.gpus, row.efficiency.value) for row in rows]
    lines = [Line("predicted", "one", points, has_dots=True, tips=tips)]
    keys = [Key("predicted", "one"), Key("its band: four of five measurements", "one", "band")]
    useful = [(float(row.gpus), row.useful) for row in rows if row.useful is not None]
    if any(row.useful is not None and row.useful < _WASTE * row.efficiency.value for row in rows):
        lines.append(Line("useful", "three", useful, is_dashed=True))
        keys.append(Key("less the samples that a larger batch wastes", "three", "dashes"))
    if advice.measured:
        lines.append(_measured_line([(point.gpus, point.efficiency) for point in advice.measured], percent))
        keys.append(Key("measured", "two", "dot"))
    return lines, tuple(keys)


def _gpu_axis(advice: AdviceRecord) -> Axis:
    counts = {row.gpus for row in advice.rows} | {point.gpus for point in advice.measured}
    return Axis("GPUs", lambda gpus: f"{gpus:,.0f}", is_log=True, ticks=sorted(counts))


def _between(band: Band) -> str:
    return "" if band.is_sure else f" ({span_text(band.low, band.high, percent)})"


def _measured_line(points: list[Point], write: Callable[[float], str]) -> Line:
    tips = [f"measured on {counted(gpus, 'GPU')}: {write(value)}" for gpus, value in points]
    return Line("measured", "two", points, has_dots=True, has_line=False, tips=tips)


def _predictions(advice: AdviceRecord) -> Table:
    columns = [
        Column("gpus", "GPUs"),
        Column("efficiency", "efficiency"),
        Column("throughput", "samples/s"),
        Column("time_s", "time to finish"),
        Column("cost", "cost"),
    ]
    rows = [_prediction(row) for row in advice.rows]
    if advice.source == "measured":
        rows += [
            [
                Cell(point.gpus, f"{point.gpus:,}"),
                Cell(point.efficiency, percent(point.efficiency), "measured"),
                Cell(point.throughput, short(point.throughput)),
                NOTHING,
                NOTHING,
            ]
            for point in advice.measured
        ]
        rows.sort(key=lambda row: float(row[0].value or 0))
    marked = next((i for i, row in enumerate(rows) if row[0].value == advice.recommended), None)
    return table_of(columns, rows, marked)


def _prediction(row: Row) -> list[Cell]:
    return [
        Cell(row.gpus, f"{row.gpus:,}"),
        _banded(row.efficiency, percent),
        Cell(row.throughput, short(row.throughput)),
        _banded(row.time_s, time_text),
        _banded(row.cost, short),
    ]


def _banded(band: Band | None, write: Callable[[float], str]) -> Cell:
    if band is None:
        return NOTHING
    detail = "" if band.is_sure else span_text(band.low, band.high, write)
    return Cell(band.value, write(band.value), detail)


def cause_figure(waterfall: Waterfall) -> Figure:
    """From GPUs that never wait down to what is left; the bars sum to the loss."""
    bars, rows, left = [Bar("never waiting", 1.0, percent(1.0, 0), "other")], [], 1.0
    for cause, share in waterfall.bars:
        name, look = CAUSES.get(cause, (cause, "wait"))
        left = max(0.0, left - share)
        bars.append(
            Bar(name, share, f"\u2212{percent(share)}" if share >= _SEEN else percent(0.0), look, left)
        )
        rows.append([Cell(cause, name), Cell(share, percent(share))])
    bars.append(Bar("left", waterfall.left, percent(waterfall.left), "forward"))
    rows.append([Cell("left", "left"), Cell(waterfall.left, percent(waterfall.left))])
    title = f"Where efficiency goes at {counted(waterfall.gpus, 'GPU')}"
    summary = f"Of GPUs that never wait, {percent(waterfall.left)} is left"
    cause, share = max(waterfall.bars, key=lambda bar: bar[1], default=("", 0.0))
    summary += (
        f"; most goes to {CAUSES.get(cause, (cause, ''))[0]}, {percent(share)}." if share >= _SEEN else "."
    )
    columns = [Column("cause", "cause", True), Column("share", "share of the step")]
    svg = draw_waterfall(Words("waterfall", title, summary), bars)
    return Figure(
        "waterfall",
        title,
        summary,
        svg,
        table_of(columns, rows, len(rows) - 1),
        is_table_shown=True,
        room="wide",
    )


def throughput_figure(advice: AdviceRecord) -> Figure:
    """Samples a second beside those of as many GPUs that lose nothing."""
    rows, first, last = advice.rows, advice.rows[0], advice.rows[-1]
    each = first.throughput / first.gpus / (first.efficiency.value or 1.0)
    ends = [first.gpus, last.gpus, *(point.gpus for point in advice.measured)]
    tips = [f"{counted(row.gpus, 'GPU')}: {short(row.throughput)} samples/s" for row in rows]
    lines = [
        Line("ideal", "three", [(gpus, each * gpus) for gpus in sorted(set(ends))], is_dashed=True),
        Line("predicted", "one", [(row.gpus, row.throughput) for row in rows], has_dots=True, tips=tips),
    ]
    keys = [Key("predicted", "one"), Key("without any loss", "three", "dashes")]
    if advice.measured:
        lines.append(_measured_line([(point.gpus, point.throughput) for point in advice.measured], short))
        keys.append(Key("measured", "two", "dot"))
    title = "Samples a second"
    at = counted(last.gpus, "GPU")
    summary = f"{short(last.throughput)} at {at}; {short(each * last.gpus)} without any loss."
    is_log = wants_log([y for line in lines for _, y in line.points], 1.0)
    y = Axis("samples/s (logarithmic)" if is_log else "samples/s", is_log=is_log, from_zero=True)
    plot = Plot("throughput", title, summary, _gpu_axis(advice), y, lines)
    columns = [
        Column("gpus", "GPUs"),
        Column("throughput", "samples/s"),
        Column("ideal", "without any loss"),
        Column("step_time_s", "step"),
    ]
    cells = [
        [
            Cell(row.gpus, f"{row.gpus:,}"),
            Cell(row.throughput, short(row.throughput)),
            Cell(each * row.gpus, short(each * row.gpus)),
            _banded(row.step_s, time_text),
        ]
        for row in rows
    ]
    return Figure(plot.key, title, summary, plot.draw(), table_of(columns, cells), tuple(keys))


def change_figure(advice: AdviceRecord) -> Figure:
    """Changes by what they gain, the best first; the picture has the first of them, the table all."""
    changes = sorted(advice.changes, key=lambda one: -one.gain)
    title = f"Gain in speed of a change, at {counted(advice.rows[-1].gpus, 'GPU')}"
    best = changes[0]
    summary = f"{best.change[:1].upper()}{best.change[1:]} would help most: {_signed(best.gain)}."
    bars = [
        Bar(one.change, max(0.0, one.gain), _signed(one.gain), "forward") for one in changes[:_MOST_CHANGES]
    ]
    columns = [Column("change", "change", True), Column("throughput", "samples/s"), Column("gain", "gain")]
    rows = [
        [
            Cell(one.change, one.change),
            Cell(one.throughput, short(one.throughput)),
            Cell(one.gain, _signed(one.gain)),
        ]
        for one in changes
    ]
    svg = draw_bars(Words("what-if", title, summary), bars)
    return Figure("what-if", title, summary, svg, table_of(columns, rows), is_table_shown=True, room="wide")


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"

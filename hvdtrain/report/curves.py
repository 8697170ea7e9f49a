"""Draws what a run recorded over its steps: learning curves, speed, and what the step's time went to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hvdtrain.report.content import NOTHING, Cell, Column, Figure, Key, Section, Table, table_of
from hvdtrain.report.numbers import counted, percent, short
from hvdtrain.report.plot import Area, Axis, Line, Plot, Point
from hvdtrain.report.run_record import MetricLine, RunRecord
from hvdtrain.report.scale import wants_log
from hvdtrain.report.step_parts import PARTS

_NAMES = {
    "loss": "training",
    "epoch_loss": "training, mean of the epoch",
    "validation_loss": "validation",
    "accuracy": "training",
    "validation_accuracy": "validation",
    "lr": "learning rate",
    "samples_per_s": "samples/s",
}
_LOOKS = {"epoch_loss": "two", "validation_loss": "three", "validation_accuracy": "three"}
_MOST_OTHERS = 6  # values of the job's own that are drawn
_MOST_DOTS = 40
_FINE = 0.04  # shares that differ by less are told with a digit after the point


@dataclass(frozen=True)
class Curves:
    """What is drawn together: the values by their names in ``metrics.jsonl``."""

    key: str
    title: str
    axis: str
    values: tuple[str, ...]


_LOSS = Curves("loss", "Loss", "loss", ("loss", "epoch_loss", "validation_loss"))
_ACCURACY = Curves("accuracy", "Accuracy", "accuracy", ("accuracy", "validation_accuracy"))
_SPEED = Curves("speed", "Samples a second, all ranks together", "samples/s", ("samples_per_s",))
_OTHERS = (
    _SPEED,
    Curves("rate", "Learning rate", "learning rate", ("lr",)),
    Curves("norm", "Gradient norm", "2-norm", ("gradient_norm",)),
    Curves("noise", "Gradient noise scale", "samples", ("noise_scale",)),
)


def curve_sections(run: RunRecord) -> tuple[Section, ...]:
    """Loss and accuracy, then the job's own metrics, then speed and what else was recorded."""
    known = {value for one in (_LOSS, _ACCURACY, *_OTHERS) for value in one.values}
    known |= {key for key, _, _ in PARTS}
    own = [key for key in run.keys if key not in known][:_MOST_OTHERS]
    asked = [Curves(f"metric-{i}", _worded(key).capitalize(), "", (key,)) for i, key in enumerate(own, 1)]
    figures = [figure for one in (_LOSS, _ACCURACY, *asked, *_OTHERS) if (figure := _figure(run, one))]
    if over_time := _shares_over_time(run):
        figures.append(over_time)
    return (Section("Learning curves", tuple(figures)),) if figures else ()


def _worded(key: str) -> str:
    return _NAMES.get(key, key.replace("_", " "))


def _figure(run: RunRecord, curves: Curves) -> Figure | None:
    series = {key: points for key in curves.values if (points := run.series(key))}
    if not series:
        return None
    values = [y for points in series.values() for _, y in points]
    is_share = curves is _ACCURACY and 0 <= min(values) <= max(values) <= 1
    told = _in_percent(2) if is_share else short
    lines = [_line(key, points, told) for key, points in series.items()]
    is_log = curves is _LOSS and wants_log(values)
    write = _in_percent(0 if max(values) - min(values) > _FINE else 1) if is_share else short
    name = f"{curves.axis} (logarithmic)" if is_log else curves.axis
    summary = "; ".join(_course(key, points, told) for key, points in series.items())
    plot = Plot(
        curves.key,
        curves.title,
        f"{summary[0].upper()}{summary[1:]}.",
        _step_axis(),
        Axis(name, write, is_log, from_zero=curves is _SPEED),
        lines,
    )
    keys = tuple(Key(line.name, line.look, "dashes" if line.is_dashed else "line") for line in lines)
    table = _table(run, list(series), told)
    return Figure(plot.key, plot.title, plot.summary, plot.draw(), table, keys if len(keys) > 1 else ())


def _line(key: str, points: Sequence[Point], told: Callable[[float], str]) -> Line:
    has_dots = key.startswith("validation") and len(points) <= _MOST_DOTS
    tips = [f"step {step:,.0f}: {told(value)}" for step, value in points] if has_dots else ()
    look = _LOOKS.get(key, "one")
    return Line(_worded(key), look, points, is_dashed=key == "epoch_loss", has_dots=has_dots, tips=tips)


def _course(key: str, points: Sequence[Point], told: Callable[[float], str]) -> str:
    return f"{_worded(key)} {told(points[0][1])} at first, {told(points[-1][1])} at last"


def _in_percent(digits: int) -> Callable[[float], str]:
    return lambda value: percent(value, digits)


def _step_axis() -> Axis:
    return Axis("step", lambda step: f"{step:,.0f}")


def _table(run: RunRecord, keys: Sequence[str], told: Callable[[float], str]) -> Table:
    """The evaluations if there are any, else every line that has one of the values."""
    shown = [key for key in keys if key.startswith(("validation", "epoch"))] or keys
    columns = [Column("step", "step"), Column("epoch", "epoch")]
    columns += [Column(key, _worded(key)) for key in shown]
    rows = [
        [
            Cell(line.step, f"{line.step:,}"),
            NOTHING if line.epoch is None else Cell(line.epoch, str(line.epoch)),
            *(
                Cell(line.values[key], told(line.values[key])) if key in line.values else NOTHING
                for key in shown
            ),
        ]
        for line in run.lines
        if any(key in line.values for key in shown)
    ]
    return table_of(columns, rows)


def _shares_over_time(run: RunRecord) -> Figure | None:
    """What the step's time went to: from lines that hold a step's parts, named as in profile.json."""
    lines = [line for line in run.lines if _step_s(line.values) > 0]
    if len(lines) < 2:
        return None
    below = [0.0] * len(lines)
    areas, rows = [], [[Cell(line.step, f"{line.step:,}")] for line in lines]
    for key, name, look in PARTS:
        above = [base + _share(line, key) for base, line in zip(below, lines, strict=True)]
        edges = [(float(line.step), low, high) for line, low, high in zip(lines, below, above, strict=True)]
        areas.append(Area(name, look, edges))
        for row, line in zip(rows, lines, strict=True):
            row.append(Cell(_share(line, key), percent(_share(line, key))))
        below = above
    _, most, _ = max(PARTS, key=lambda part: sum(_share(line, part[0]) for line in lines))
    plot = Plot(
        "shares-over-time",
        "What the step's time went to, over the run",
        f"Shares of the step by part in {counted(len(lines), 'record')}; {most} takes most.",
        _step_axis(),
        Axis("share of the step", _in_percent(0), ticks=(0, 0.25, 0.5, 0.75, 1), from_zero=True, high=1.0),
        areas=areas,
    )
    columns = [Column("step", "step")]
    columns += [Column(f"{key.removesuffix('_s')}_share", name) for key, name, _ in PARTS]
    legend = tuple(Key(name, look, "area") for _, name, look in PARTS)
    return Figure(plot.key, plot.title, plot.summary, plot.draw(), table_of(columns, rows), legend)


def _step_s(values: Mapping[str, float]) -> float:
    return sum(max(0.0, values.get(key, 0.0)) for key, _, _ in PARTS)


def _share(line: MetricLine, key: str) -> float:
    return max(0.0, line.values.get(key, 0.0)) / _step_s(line.values)

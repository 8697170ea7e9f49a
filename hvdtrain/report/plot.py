"""Draws values over values: lines, points, bands and stacked areas between two axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hvdtrain.report.numbers import short
from hvdtrain.report.scale import Scale, linear_ticks, log_ticks, span
from hvdtrain.report.svg import WIDTH, element, label, path, picture, text, text_width

HEIGHT = 236.0
_TOP, _BOTTOM, _RIGHT, _GAP = 30.0, 40.0, 16.0, 8.0
_MOST_POINTS = 400  # of a line: more than there are places across
_LABEL_HEIGHT = 14.0
_LEAST_AIR = (
    0.02  # above and below nearly the same values: numbers of three digits then differ from tick to tick
)

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A line through points in ascending order of x; ``has_dots`` marks each, with ``tips`` to point at."""

    name: str
    look: str
    points: Sequence[Point]
    is_dashed: bool = False
    has_dots: bool = False
    has_line: bool = True
    tips: Sequence[str] = ()


@dataclass(frozen=True)
class Area:
    """What lies between a lower and an upper edge, each x with both."""

    name: str
    look: str
    edges: Sequence[tuple[float, float, float]]


@dataclass(frozen=True)
class Mark:
    """Words at a point; ``is_strong`` circles it too, and its words go first where room is short."""

    x: float
    y: float
    words: str
    is_strong: bool = False


@dataclass(frozen=True)
class Axis:
    """What an axis shows, how its ticks are written, and where they stand if not at round numbers."""

    name: str
    write: Callable[[float], str] = short
    is_log: bool = False
    ticks: Sequence[float] = ()
    from_zero: bool = False
    high: float | None = None


@dataclass(frozen=True)
class Plot:
    """All that is drawn between two axes, the first at the bottom of the pile."""

    key: str
    title: str
    summary: str
    x: Axis
    y: Axis
    lines: Sequence[Line] = ()
    areas: Sequence[Area] = ()
    marks: Sequence[Mark] = ()

    def draw(self) -> str:
        """The picture as SVG."""
        return picture(self.key, self.title, self.summary, HEIGHT, _Frame(self).parts())


def decimated(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
    """Few points that look like many: of each stretch its least and its largest, so that no peak is lost."""
    if len(points) <= most:
        return list(points)
    stretches = most // 2
    kept: list[Point] = []
    for i in range(stretches):
        part = points[i * len(points) // stretches : (i + 1) * len(points) // stretches]
        pair = {min(part, key=lambda one: one[1]), max(part, key=lambda one: one[1])}
        kept += sorted(pair)
    return [points[0], *kept[1:-1], points[-1]]


@dataclass
class _Frame:
    """A plot with its scales; the left margin is as wide as the widest number beside the axis."""

    plot: Plot
    x: Scale = field(init=False)
    y: Scale = field(init=False)
    x_ticks: list[float] = field(init=False)
    y_ticks: list[float] = field(init=False)

    def __post_init__(self) -> None:
        plot = self.plot
        points = [point for line in plot.lines for point in line.points]
        points += [(x, edge) for area in plot.areas for x, *edges in area.edges for edge in edges]
        low, high = _ends(plot.y, [y for _, y in points], least_air=_LEAST_AIR)
        self.y_ticks = _ticks(plot.y, low, high, 5)
        left = 14 + max((text_width(plot.y.write(tick)) for tick in self.y_ticks), default=0)
        self.y = Scale(low, high, HEIGHT - _BOTTOM, _TOP, plot.y.is_log)
        low, high = _ends(plot.x, [x for x, _ in points], air=any(line.has_dots for line in plot.lines))
        self.x = Scale(low, high, left, WIDTH - _RIGHT, plot.x.is_log)
        self.x_ticks = self._fitting(_ticks(plot.x, low, high, 6))

    def parts(self) -> Iterator[str]:
        """Everything in order: the grid lies under the values, words on top."""
        yield from self._axes()
        for area in self.plot.areas:
            yield self._area(area)
        for line in self.plot.lines:
            yield from self._line(line)
        yield from self._marks()

    def _fitting(self, ticks: list[float]) -> list[float]:
        """Every k-th tick, so that their words stand apart and the last of them is there."""
        for step in range(1, len(ticks) + 1):
            kept = ticks[::-1][::step][::-1]
            boxes = [self._words_over(tick) for tick in kept]
            if all(one[1] + _GAP <= other[0] for one, other in pairwise(boxes)):
                return kept
        return ticks[-1:]

    def _words_over(self, tick: float) -> tuple[float, float]:
        """Where a tick's words begin and end: around it, but never past an edge of the picture."""
        width = text_width(self.plot.x.write(tick))
        begin = max(0.0, min(self.x.at(tick) - width / 2, WIDTH - 2 - width))
        return begin, begin + width

    def _axes(self) -> Iterator[str]:
        left, right, bottom = self.x.start, self.x.end, self.y.start
        yield label(2, 14, self.plot.y.name, look="axis-name")
        for tick in self.y_ticks:
            place = self.y.at(tick)
            yield element("line", x1=left, x2=right, y1=place, y2=place, class_="grid")
            yield label(left - 6, place + 4, self.plot.y.write(tick), anchor="end")
        yield element("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis")
        for tick in self.x_ticks:
            place = self.x.at(tick)
            begin, end = self._words_over(tick)
            yield element("line", x1=place, x2=place, y1=bottom, y2=bottom + 4, class_="axis")
            yield label((begin + end) / 2, bottom + 17, self.plot.x.write(tick), anchor="middle")
        yield label(right, HEIGHT - 5, self.plot.x.name, look="axis-name", anchor="end")

    def _area(self, area: Area) -> str:
        upper = [(self.x.at(x), self.y.at(high)) for x, _, high in area.edges]
        lower = [(self.x.at(x), self.y.at(low)) for x, low, _ in reversed(area.edges)]
        return element("path", d=path([*upper, *lower]) + "Z", class_=f"area {area.look}")

    def _line(self, line: Line) -> Iterator[str]:
        points = line.points if line.has_dots else decimated(line.points)
        places = [(self.x.at(x), self.y.at(y)) for x, y in points]
        if line.has_line and len(places) > 1:
            look = f"line {line.look}{' dashed' if line.is_dashed else ''}"
            yield element("path", d=path(places), class_=look)
        if line.has_dots or len(places) == 1:
            look = f"dot {line.look}" if line.has_line else f"dot hollow {line.look}"
            for i, (x, y) in enumerate(places):
                tip = [element("title", text(line.tips[i]))] if line.tips else []
                yield element("circle", *tip, cx=x, cy=y, r=3.4 if line.has_line else 5.0, class_=look)

    def _marks(self) -> Iterator[str]:
        """Words above their points, where nothing else stands yet; the table has those that find no room."""
        taken: list[tuple[float, float, float, float]] = []
        for mark in sorted(self.plot.marks, key=lambda one: not one.is_strong):
            x, y = self.x.at(mark.x), self.y.at(mark.y)
            width = text_width(mark.words)
            left = min(max(x - width / 2, self.x.start + 2), WIDTH - 2 - width)
            if mark.is_strong:
                yield element("circle", cx=x, cy=y, r=8, class_="ring")
            for base in (y - 11, y + 21):
                box = (left - 3, base - _LABEL_HEIGHT, left + width + 3, base + 3)
                inside = box[1] >= 16 and box[3] <= self.y.start
                if inside and not any(_overlap(box, other) for other in taken):
                    taken.append(box)
                    look = "mark strong" if mark.is_strong else "mark"
                    yield label(left + width / 2, base, mark.words, look=look, anchor="middle")
                    break


def _ends(
    axis: Axis, values: Sequence[float], *, air: bool = True, least_air: float = 0.0
) -> tuple[float, float]:
    if axis.is_log or air or len(set(values)) < 2:
        held = [*values, *axis.ticks]
        low, high = span(held, is_log=axis.is_log, from_zero=axis.from_zero, least_air=least_air)
    else:
        low, high = min(values), max(values)
    return low, axis.high if axis.high is not None else high


def _ticks(axis: Axis, low: float, high: float, most: int) -> list[float]:
    if axis.ticks:
        return sorted(tick for tick in set(axis.ticks) if low <= tick <= high)
    return log_ticks(low, high, most) if axis.is_log else linear_ticks(low, high, most)


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]

"""Lines, bands and marks between two axes."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from hvdtrain.report.plot import HEIGHT, Area, Axis, Line, Mark, Plot, decimated
from hvdtrain.report.svg import WIDTH, text_width

ONE = Line("one", "one", [(0.0, 0.0), (50.0, 5.0), (100.0, 10.0)])


def drawn(*lines, x=None, y=None, **parts):
    plot = Plot("p", "title", "summary", x or Axis("step"), y or Axis("loss"), lines, **parts)
    return ElementTree.fromstring(plot.draw())


def of_class(svg, name):
    return [node for node in svg.iter() if name in node.get("class", "").split()]


def places(node):
    return [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+) ([\d.]+)", node.get("d"))]


def test_a_line_goes_through_its_points_in_proportion():
    (line,) = of_class(drawn(ONE), "line")
    (x0, y0), (x1, y1), (x2, y2) = places(line)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.02)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.02)
    assert x0 < x2
    assert y0 > y2


@pytest.mark.parametrize(
    "points",
    [
        [(0.0, 0.0)],
        [(0.0, 5.0), (1.0, 5.0)],
        [(0.0, -1e299), (1.0, 1e299)],
        [(float(i), 1e-12 * i) for i in range(1000)],
        [(1e15 + i, 3e12) for i in range(3)],
        [],
    ],
)
def test_words_and_lines_stay_inside_whatever_the_values(points):
    svg = drawn(Line("one", "one", points), x=Axis("step", lambda step: f"{step:,.0f}"))
    for node in svg.iter("text"):
        x, y, width = float(node.get("x")), float(node.get("y")), text_width(node.text)
        left = {"start": x, "middle": x - width / 2, "end": x - width}[node.get("text-anchor")]
        assert left >= -0.1, node.text
        assert left + width <= WIDTH, node.text
        assert 0 < y < HEIGHT
    for node in of_class(svg, "line"):
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places(node))


def test_words_under_the_axis_stand_apart():
    counts = [2**i for i in range(17)]
    line = Line("one", "one", [(count, 1.0) for count in counts], has_dots=True)
    svg = drawn(line, x=Axis("GPUs", lambda gpus: f"{gpus:,.0f}", is_log=True, ticks=counts))
    middles = {
        node.text: float(node.get("x")) for node in svg.iter("text") if node.get("text-anchor") == "middle"
    }
    boxes = sorted((x - text_width(text) / 2, x + text_width(text) / 2) for text, x in middles.items())
    assert "65,536" in middles
    assert all(one[1] < other[0] for one, other in pairwise(boxes))


def test_a_band_lies_between_its_edges():
    band = Area("band", "band one", [(1, 2.0, 4.0), (2, 3.0, 5.0)])
    (area,) = of_class(drawn(ONE, areas=[band]), "area")
    upper, lower = places(area)[:2], places(area)[2:][::-1]
    assert all(above[1] < below[1] for above, below in zip(upper, lower, strict=True))


def test_the_strong_mark_has_its_words_where_others_find_no_room():
    marks = [Mark(50, 5, f"{i} GPUs") for i in range(5)] + [Mark(50, 5, "best", is_strong=True)]
    svg = drawn(ONE, marks=marks)
    assert [node.text for node in of_class(svg, "strong")] == ["best"]
    assert len(of_class(svg, "mark")) < len(marks)
    assert len(of_class(svg, "ring")) == 1


def test_few_points_keep_every_peak():
    points = [(float(i), 0.0) for i in range(100_000)]
    points[54_321] = (54_321.0, 9.0)
    kept = decimated(points)
    assert len(kept) <= 402
    assert (54_321.0, 9.0) in kept
    assert kept == sorted(kept)
    assert (kept[0], kept[-1]) == (points[0], points[-1])


@pytest.mark.parametrize("value", [25.765, 100.2, 999.4, 0.98861, 1e-7])
def test_what_is_nearly_the_same_has_ticks_that_differ(value):
    svg = drawn(Line("one", "one", [(0.0, value), (1.0, value * (1 + 1e-6))]))
    words = [node.text for node in svg.iter("text") if node.get("text-anchor") == "end"]
    assert len(words) > 2
    assert len(set(words)) == len(words)

"""Draws bars that lie: one under the other with words above, stacked by part, or as a waterfall."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hvdtrain.report.numbers import percent
from hvdtrain.report.scale import Scale, linear_ticks
from hvdtrain.report.svg import WIDTH, element, fit_text, label, picture, text, text_width

_EDGE = 2.0


@dataclass(frozen=True)
class Bar:
    """A bar from 0 or, in a waterfall, from ``begin``; ``words`` are its value, ``tip`` is to point at."""

    name: str
    value: float
    words: str
    look: str
    begin: float = 0.0


@dataclass(frozen=True)
class Stack:
    """A bar of parts, each (value, look, tip)."""

    name: str
    parts: Sequence[tuple[float, str, str]]
    words: str = ""


@dataclass(frozen=True)
class Words:
    """A picture's name in the page, its title, and what it shows."""

    key: str
    title: str
    summary: str


def draw_bars(words: Words, bars: Sequence[Bar], high: float | None = None) -> str:
    """Bars under their names, with their values behind them; ``high`` is the value of a full width."""
    room = max((text_width(bar.words) for bar in bars), default=0) + 8
    scale = Scale(0, high or max((bar.value for bar in bars), default=0) or 1, _EDGE, WIDTH - _EDGE - room)
    row = 38.0
    return picture(words.key, words.title, words.summary, row * len(bars) + 4, _rows(bars, scale, row))


def _rows(bars: Sequence[Bar], scale: Scale, row: float) -> Iterator[str]:
    for i, bar in enumerate(bars):
        top = i * row
        yield label(_EDGE, top + 13, fit_text(bar.name, WIDTH - 2 * _EDGE))
        end = scale.at(bar.value)
        yield _bar(_EDGE, end, top + 19, bar.look, f"{bar.name}: {bar.words}")
        yield label(end + 6, top + 30, bar.words, look="value")


def draw_waterfall(words: Words, bars: Sequence[Bar]) -> str:
    """Bars of shares of a whole, each from where the one before ended, on one scale from 0 to 100 %."""
    names = min(130.0, max(text_width(bar.name) for bar in bars)) + 10
    values = max(text_width(bar.words) for bar in bars) + 8
    scale = Scale(0, 1, _EDGE + names, WIDTH - _EDGE - values)
    row, top = 30.0, 4.0
    height = top + row * len(bars) + 22
    parts = [*_shares(scale, top, height - 20)]
    for i, bar in enumerate(bars):
        y = top + i * row
        begin, end = scale.at(bar.begin), scale.at(bar.begin + bar.value)
        parts.append(label(_EDGE, y + 18, fit_text(bar.name, names - 10)))
        parts.append(_bar(begin, end, y + 6, bar.look, f"{bar.name}: {bar.words}"))
        parts.append(label(WIDTH - _EDGE, y + 18, bar.words, look="value", anchor="end"))
        if i + 1 < len(bars):
            joint = scale.at(bars[i + 1].begin + bars[i + 1].value)
            parts.append(element("line", x1=joint, x2=joint, y1=y + 20, y2=y + row + 6, class_="joint"))
    return picture(words.key, words.title, words.summary, height, parts)


def draw_stacks(words: Words, stacks: Sequence[Stack], high: float, axis: Sequence[tuple[float, str]]) -> str:
    """Stacked bars under their names, on one scale from 0 to ``high`` with (value, words) as its ticks."""
    scale = Scale(0, high, _EDGE, WIDTH - _EDGE - 4)
    row = 38.0
    height = row * len(stacks) + 26
    parts = []
    for value, _ in axis:
        parts.append(
            element("line", x1=scale.at(value), x2=scale.at(value), y1=2, y2=height - 20, class_="grid")
        )
    for i, stack in enumerate(stacks):
        top, begin = i * row, 0.0
        room = text_width(stack.words) + 12
        parts.append(label(_EDGE, top + 13, fit_text(stack.name, WIDTH - 2 * _EDGE - room)))
        parts.append(label(WIDTH - _EDGE, top + 13, stack.words, look="value", anchor="end"))
        for value, look, tip in stack.parts:
            if value > 0:
                parts.append(_bar(scale.at(begin), scale.at(begin + value), top + 19, f"part {look}", tip))
            begin += value
    parts += _ticks(scale, axis, height)
    return picture(words.key, words.title, words.summary, height, parts)


def round_ticks(high: float, most: int = 4) -> list[float]:
    """Ticks from 0 for a scale of that length."""
    return linear_ticks(0, high, most)


def _shares(scale: Scale, top: float, bottom: float) -> Iterator[str]:
    for share in (0.0, 0.5, 1.0):
        yield element("line", x1=scale.at(share), x2=scale.at(share), y1=top, y2=bottom, class_="grid")
        yield label(scale.at(share), bottom + 15, percent(share, 0), anchor="middle")


def _ticks(scale: Scale, axis: Sequence[tuple[float, str]], height: float) -> Iterator[str]:
    for value, words in axis:
        width = text_width(words)
        middle = min(max(scale.at(value), _EDGE + width / 2), WIDTH - _EDGE - width / 2)
        yield label(middle, height - 5, words, anchor="middle")


def _bar(begin: float, end: float, top: float, look: str, tip: str) -> str:
    """A bar of at least a unit and a half: what is small is still there."""
    return element(
        "rect",
        element("title", text(tip)),
        x=begin,
        y=top,
        width=max(1.5, end - begin),
        height=14.0,
        class_=f"bar {look}",
    )

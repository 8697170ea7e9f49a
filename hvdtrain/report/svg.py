"""Writes SVG elements; every text and attribute is escaped here, and only here.

A picture has no colours of its own: its classes take them from the page, so that dark mode and print can
change them. It is drawn 360 units wide, about what a phone has, and grows with the page.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from html import escape

from hvdtrain.report.content import clean

WIDTH = 360.0
FONT_SIZE = 12.0
_NARROW, _BROAD = frozenset("iljtfrI.,:;'|!()[] "), frozenset("mwMW@%")


def element(name: str, *inside: str, **attributes: str | float | None) -> str:
    """An element; an attribute's underscores are hyphens, one that is None is left out.

    Args:
        name: The tag.
        inside: Elements that are written already, or texts that ``text`` escaped.
        attributes: Texts and numbers; ``class_`` stands for the attribute class.
    """
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{told}>{''.join(inside)}</{name}>" if inside else f"<{name}{told}/>"


def text(words: str) -> str:
    """A text that may stand inside an element."""
    return escape(clean(words), quote=True)


def label(x: float, y: float, words: str, *, look: str = "label", anchor: str = "start") -> str:
    """A line of text whose baseline begins, has its middle or ends at a place."""
    return element("text", text(words), x=x, y=y, class_=look, text_anchor=anchor)


def picture(key: str, title: str, summary: str, height: float, parts: Iterable[str]) -> str:
    """The whole picture, named and described for who cannot see it."""
    return element(
        "svg",
        element("title", text(title), id=f"{key}-title"),
        element("desc", text(summary), id=f"{key}-desc"),
        *parts,
        role="img",
        aria_labelledby=f"{key}-title {key}-desc",
        viewBox=f"0 0 {_number(WIDTH)} {_number(height)}",
        class_="picture",
    )


def path(points: Iterable[tuple[float, float]]) -> str:
    """The d attribute of a line through points."""
    return "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in points)


def text_width(words: str, size: float = FONT_SIZE) -> float:
    """How wide a text is at most in the usual sans-serif fonts (DejaVu Sans is the widest of them)."""
    return size * sum(_character_width(character) for character in words)


def fit_text(words: str, room: float, size: float = FONT_SIZE) -> str:
    """A text, cut with an ellipsis where it has no room; the table beside the figure has it whole."""
    words = clean(words)
    if text_width(words, size) <= room:
        return words
    while words and text_width(words + "…", size) > room:
        words = words[:-1]
    return words.rstrip() + "…"


def _character_width(character: str) -> float:
    if character in _NARROW:
        return 0.42
    if character in _BROAD or character == "…":
        return 1.0
    if unicodedata.east_asian_width(character) in "WF":
        return 1.1
    if unicodedata.combining(character):
        return 0.0
    return 0.74 if character.isupper() else 0.65


def _attribute(value: str | float) -> str:
    return text(value) if isinstance(value, str) else _number(value)


def _number(value: float) -> str:
    """Hundredths of a unit are finer than any screen."""
    rounded = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if rounded == "-0" else rounded

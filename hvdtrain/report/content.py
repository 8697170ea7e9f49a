"""What a report holds, before anybody decides whether it becomes a page, a terminal's tables or JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Value = str | float | int | bool | None

# Characters that no text of a job needs: controls would steer a terminal, marks of direction turn a line
# around, and half a surrogate cannot be written in UTF-8.
_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str) -> str:
    """A text without characters that steer whoever shows it; each becomes U+FFFD."""
    return _UNFIT.sub("\ufffd", text)


@dataclass(frozen=True)
class Cell:
    """A value of a table.

    Attributes:
        value: As JSON has it.
        text: As people read it.
        detail: What stands behind it in a smaller size, such as its band.
    """

    value: Value
    text: str
    detail: str = ""


NOTHING = Cell(None, "")


@dataclass(frozen=True)
class Column:
    """A column: its key in JSON, its heading, and whether it holds words or numbers."""

    key: str
    heading: str
    is_words: bool = False


@dataclass(frozen=True)
class Table:
    """Rows under columns. ``marked`` is the number of a row that stands out, such as the recommended one."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    marked: int | None = None

    def thinned(self, most: int) -> Table:
        """At most so many rows, evenly taken; the first and the last are among them."""
        if len(self.rows) <= most:
            return self
        last = len(self.rows) - 1
        return Table(self.columns, tuple(self.rows[round(i * last / (most - 1))] for i in range(most)))


@dataclass(frozen=True)
class Key:
    """An entry of a figure's legend: the class of the look, and how it is drawn."""

    name: str
    look: str
    shape: Literal["line", "dashes", "area", "band", "dot"] = "line"


@dataclass(frozen=True)
class Figure:
    """A picture, what it shows in words, and the same as a table.

    Attributes:
        key: Its name in JSON and in the page, of letters and hyphens.
        title: Its heading.
        summary: What it shows in a sentence, for who cannot see it too.
        svg: The picture.
        table: What is drawn, in numbers.
        legend: What the colours mean; may be empty.
        is_table_shown: Whether the page shows the table at once; else it unfolds.
        room: "wide" has the page's whole width, the table beside the picture; "tall" the height of three.
    """

    key: str
    title: str
    summary: str
    svg: str
    table: Table
    legend: tuple[Key, ...] = ()
    is_table_shown: bool = False
    room: Literal["", "wide", "tall"] = ""


@dataclass(frozen=True)
class Fact:
    """A fact by name; ``key`` is its name in JSON."""

    key: str
    name: str
    value: Value
    text: str


@dataclass(frozen=True)
class Section:
    """A part of the report."""

    title: str
    figures: tuple[Figure, ...] = ()
    facts: tuple[Fact, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class Tile:
    """A number that matters most, its name, and a few words on it."""

    name: str
    text: str
    detail: str = ""


@dataclass(frozen=True)
class Gate:
    """A limit that the user set, in a sentence, and whether it holds."""

    sentence: str
    holds: bool


@dataclass(frozen=True)
class Report:
    """All that is told.

    Attributes:
        kind: Of what: "run", "profile" or "advice".
        title: The name.
        state: How it ended, in a word or two, and whether that is "good", "bad" or "open"; None of what has
            no end.
        lead: The verdict, or the cause of a failure; may be empty.
        tiles: The numbers on top.
        gates: The limits that were set.
        sections: The rest.
        notes: What the reader should know of the numbers: assumptions, what was skipped.
    """

    kind: Literal["run", "profile", "advice"]
    title: str
    state: tuple[str, Literal["good", "bad", "open"]] | None
    lead: str
    tiles: tuple[Tile, ...]
    sections: tuple[Section, ...]
    gates: tuple[Gate, ...] = ()
    notes: tuple[str, ...] = ()


def facts(*entries: tuple[str, str, Value, str]) -> tuple[Fact, ...]:
    """Facts of (key, name, value, text); those whose value is None are left out."""
    return tuple(Fact(*entry) for entry in entries if entry[2] is not None)


def table_of(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], marked: int | None = None) -> Table:
    """A table without the columns that hold nothing in any row."""
    kept = [i for i in range(len(columns)) if any(row[i].value is not None for row in rows)]
    return Table(tuple(columns[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in rows), marked)

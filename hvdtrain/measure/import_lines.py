"""What both kinds of foreign output share: lines with numbers, the layout, checked values."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from hvdtrain.errors import InputError
from hvdtrain.measure.network import Row

# What `mpirun --tag-output` and `srun --label` put before each line.
_TAG = re.compile(r"^(\[\d+,\d+\]<(stdout|stderr)>:|\d+:\s)")


@dataclass(frozen=True)
class Line:
    """One line of a file, without the tag of an mpirun and blanks around it; numbers are from 1."""

    number: int
    text: str


@dataclass(frozen=True)
class Layout:
    """Name and number of ranks of each host, as the user told them; empty if nothing was told."""

    hosts: tuple[tuple[str, int], ...] = ()

    @property
    def size(self) -> int:
        """Number of ranks; 0 if nothing was told."""
        return sum(ranks for _, ranks in self.hosts)


@dataclass
class Found:
    """What was read of a file.

    Attributes:
        source: What printed it.
        hosts: Name and number of ranks of each host.
        rows: Its rows, in its order.
        notes: What the user should know.
    """

    source: str
    hosts: list[tuple[str, int]]
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def level(self) -> str:
        """``inside`` one host, or ``between`` several."""
        return "inside" if len(self.hosts) == 1 else "between"


def numbered_lines(text: str) -> list[Line]:
    """The lines of a file that are not blank."""
    lines = [Line(i, _TAG.sub("", line.strip()).strip()) for i, line in enumerate(text.splitlines(), 1)]
    return [line for line in lines if line.text]


def starts_with_number(text: str) -> bool:
    """Whether a line is one of a table's, be it a damaged one."""
    first = text.split(maxsplit=1)[0]
    return first.isdecimal() and first.isascii()


def whole(text: str, name: str, where: str) -> int:
    """A count from 1.

    Raises:
        InputError: It is none.
    """
    if not (text.isdecimal() and text.isascii() and len(text) <= 18 and 1 <= int(text) < 1 << 48):
        raise InputError(f"{name} is {text!r}", where=where, legal="a whole number from 1")
    return int(text)


def positive(text: str, name: str, where: str) -> float:
    """A time or rate above zero.

    Raises:
        InputError: It is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} is {text!r}", where=where, legal="a number above 0")
    return value


def refuse_without_rows(found: Found, lines: Sequence[Line], path: str) -> None:
    """Refuses a table that has a heading only.

    Raises:
        InputError: There is no row.
    """
    if not found.rows:
        raise InputError(
            "the table has no rows", where=f"{path}:{lines[-1].number}", do="was the benchmark cut short?"
        )

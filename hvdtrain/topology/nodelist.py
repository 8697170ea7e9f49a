"""Slurm's node lists and counts per node, in both directions, order kept.

Written by hand because the order decides which host has rank 0: ClusterShell sorts the hosts, and
python-hostlist refuses blanks, which Slurm allows. The grammar is that of ``scontrol show
hostnames`` (Slurm 22.05), except that what it shortens or repairs in silence is an error here::

    list   = item { separator item }          separator: one comma, blanks, or both
    item   = { text | "[" range { "," range } "]" }
    range  = number [ "-" number ]            the first number's leading zeros set the width

Several brackets in an item are walked like nested loops, the last one fastest. Text after the last
bracket (``n[1-2].rack1``) is allowed, which scontrol refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby, product
from math import prod
from typing import NamedTuple

from hvdtrain.errors import InputError
from hvdtrain.topology.hosts import MAX_RANKS
from hvdtrain.topology.names import HOST_NAME, LEGAL_HOST, quoted, whole_number

MAX_HOSTS = 1_000_000
LEGAL_LIST = "a list like n1,rack[1-2]n[01-16,20]"
LEGAL_COUNTS = "counts like 4 or 2(x3),1"

_TEXT = re.compile(r"[A-Za-z0-9_.-]+")
_BLANKS = " \t\r\n"
_SEPARATOR = re.compile(rf"[{_BLANKS}]*,[{_BLANKS}]*|[{_BLANKS}]+")
_RANGE = re.compile(rf"[{_BLANKS}]*([0-9]{{1,18}})(?:-([0-9]{{1,18}}))?[{_BLANKS}]*")
_COUNT = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")
# Nine digits: what stands before them is left as text, so that no number is out of bounds for Slurm.
_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})")


class _Range(NamedTuple):
    first: int
    last: int
    width: int

    def texts(self) -> Iterator[str]:
        return (str(number).zfill(self.width) for number in range(self.first, self.last + 1))


class _Brackets(NamedTuple):
    ranges: tuple[_Range, ...]

    @property
    def size(self) -> int:
        return sum(one.last - one.first + 1 for one in self.ranges)

    def texts(self) -> list[str]:
        return [text for one in self.ranges for text in one.texts()]


_Item = list[str | _Brackets]


def expand_nodelist(text: str, where: str = "") -> list[str]:
    """The hosts of a node list, in its order; a host that stands twice comes twice.

    Args:
        text: For example ``n[1-3,07],gpu-a``.
        where: The variable or option that held it, for messages.

    Raises:
        InputError: It is no node list, or names more than ``MAX_HOSTS`` hosts. Nothing is expanded
            before both are known.
    """
    items = list(_Scanner(text, where).items())
    num_hosts = sum(prod(part.size for part in item if isinstance(part, _Brackets)) for item in items)
    if num_hosts > MAX_HOSTS:
        raise InputError(f"{quoted(text)} names more than {MAX_HOSTS} hosts", where=where, legal=LEGAL_LIST)
    return [name for item in items for name in _names(item, text, where)]


def fold_nodelist(names: Sequence[str]) -> str:
    """A short node list that ``expand_nodelist`` turns back into exactly these names.

    Order and repetitions are kept: n2, n1, n1 is ``n[2,1,1]``. Slurm's tools read the result.

    Raises:
        InputError: There is no name, or one that is no host name.
    """
    if not names:
        raise InputError("no host to name")
    for name in names:
        if not HOST_NAME.fullmatch(name):
            raise InputError(f"{quoted(name)} is no host", legal=LEGAL_HOST)
    split = [_split_number(name) for name in names]
    folded = []
    for (prefix, unnumbered), group in groupby(split, key=lambda part: (part[0], part[1] == "")):
        numbers = [number for _, number in group]
        if unnumbered:
            folded += [prefix] * len(numbers)
        elif len(numbers) == 1:
            folded.append(prefix + numbers[0])
        else:
            folded.append(f"{prefix}[{','.join(_runs(numbers))}]")
    return ",".join(folded)


def expand_counts(text: str, where: str = "") -> list[int]:
    """The counts of ``SLURM_TASKS_PER_NODE`` and its kind: ``2(x3),1`` is [2, 2, 2, 1].

    Raises:
        InputError: It is no such list, a count is 0, or there are more than ``MAX_HOSTS``.
    """
    runs: list[tuple[int, int]] = []
    for number, word in enumerate(text.split(","), 1):
        match = _COUNT.fullmatch(word.strip())
        count = whole_number(match[1], MAX_RANKS) if match else None
        repeat = whole_number(match[2] or "1", MAX_HOSTS) if match else None
        if count is None or repeat is None:
            raise InputError(
                f"{quoted(word)}, entry {number} of {quoted(text)}, is no count",
                where=where,
                legal=LEGAL_COUNTS,
            )
        runs.append((count, repeat))
    num_hosts = sum(repeat for _, repeat in runs)
    if num_hosts > MAX_HOSTS:
        raise InputError(
            f"{quoted(text)} counts for {num_hosts} hosts", where=where, legal=f"at most {MAX_HOSTS} hosts"
        )
    return [count for count, repeat in runs for _ in range(repeat)]


def fold_counts(counts: Sequence[int]) -> str:
    """The counts as Slurm writes them: [2, 2, 2, 1] is ``2(x3),1``."""
    runs = ((count, sum(1 for _ in run)) for count, run in groupby(counts))
    return ",".join(f"{count}(x{length})" if length > 1 else str(count) for count, length in runs)


class _Scanner:
    """Walks a node list from left to right; every error names the text and the column."""

    def __init__(self, text: str, where: str) -> None:
        self._text, self._where = text, where
        self._at, self._end = len(text) - len(text.lstrip(_BLANKS)), len(text.rstrip(_BLANKS))

    def items(self) -> Iterator[_Item]:
        """The items; their texts are made of legal characters, their ranges go upwards."""
        if self._at >= self._end:
            raise InputError("the node list is empty", where=self._where, legal=LEGAL_LIST)
        while True:
            yield self._item()
            if self._at >= self._end:
                return
            separator = _SEPARATOR.match(self._text, self._at, self._end)
            assert separator is not None, "an item ends at a separator or at the end"
            self._at = separator.end()

    def _item(self) -> _Item:
        item: _Item = []
        while self._at < self._end and not _SEPARATOR.match(self._text, self._at):
            if self._text[self._at] == "[":
                item.append(self._brackets())
            elif text := _TEXT.match(self._text, self._at, self._end):
                item.append(text[0])
                self._at = text.end()
            else:
                raise self._error(f"{self._text[self._at]!r} is out of place")
        if not item:
            raise self._error("a host is missing")
        return item

    def _brackets(self) -> _Brackets:
        opened = self._at
        closed = self._text.find("]", opened, self._end)
        if closed < 0:
            raise self._error("'[' is not closed")
        self._at += 1
        ranges = []
        for word in self._text[self._at : closed].split(","):
            ranges.append(self._range(word))
            self._at += len(word) + 1
        return _Brackets(tuple(ranges))

    def _range(self, word: str) -> _Range:
        match = _RANGE.fullmatch(word)
        if match is None:
            raise self._error(f"{quoted(word)} is no number or range of numbers")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise self._error(f"the range {quoted(word)} goes backwards")
        return _Range(first, last, len(match[1]))

    def _error(self, what: str) -> InputError:
        text = quoted(self._text, self._at)
        return InputError(f"{text}, column {self._at + 1}: {what}", where=self._where, legal=LEGAL_LIST)


def _names(item: _Item, text: str, where: str) -> Iterator[str]:
    parts = [[part] if isinstance(part, str) else part.texts() for part in item]
    names = map("".join, product(*parts))
    longest = "".join(max(texts, key=len) for texts in parts)
    if not HOST_NAME.fullmatch(longest):
        raise InputError(f"{quoted(longest)} in {quoted(text)} is no host", where=where, legal=LEGAL_HOST)
    return names


def _split_number(name: str) -> tuple[str, str]:
    """A name as its text and the digits at its end; no digits where it has none."""
    match = _NUMBERED.fullmatch(name)
    return (match[1], match[2]) if match else (name, "")


def _runs(numbers: Sequence[str]) -> Iterator[str]:
    """Ranges of numbers that follow each other with one width, as expanding writes them."""
    first = last = numbers[0]
    for number in numbers[1:]:
        if number == str(int(last) + 1).zfill(len(first)):
            last = number
            continue
        yield first if first == last else f"{first}-{last}"
        first = last = number
    yield first if first == last else f"{first}-{last}"

"""Names of shards from a pattern with braces, as a shell expands them."""

from __future__ import annotations

import math
import re
from itertools import product

from hvdtrain.errors import InputError

_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST = 1_000_000


def expand_braces(pattern: str, *, where: str) -> list[str]:
    """The names that a pattern stands for, in its order.

    ``{000..007}`` counts, up or down, in as many digits as its longer end has where one of the two
    begins with 0; ``{a,b}`` lists. Several braces in a pattern count like digits, the last one
    fastest. A pattern without braces is one name.

    Args:
        pattern: For example ``photos-{000..007}.tar``.
        where: The key of the job file, for messages.

    Raises:
        InputError: A brace is open, nested or holds nothing to expand, or there are too many names.
    """
    parts = re.split(r"\{([^{}]*)\}", pattern)
    if any(letter in text for text in parts[::2] for letter in "{}"):
        raise InputError(f"{pattern!r} has a brace too many", where=where, legal="{000..007} or {a,b}")
    if empty := [inside for inside in parts[1::2] if not (_RANGE.fullmatch(inside) or "," in inside)]:
        raise InputError(
            f"{{{empty[0]}}} in {pattern!r} stands for nothing", where=where, legal="{000..007} or {a,b}"
        )
    counts = [_count(inside) for inside in parts[1::2]]
    if math.prod(counts) > _MOST:
        raise InputError(
            f"{pattern!r} stands for {math.prod(counts):,} names", where=where, legal=f"at most {_MOST:,}"
        )
    texts = [_expanded(part) if number % 2 else [part] for number, part in enumerate(parts)]
    return ["".join(chosen) for chosen in product(*texts)]


def _count(inside: str) -> int:
    found = _RANGE.fullmatch(inside)
    return abs(int(found[2]) - int(found[1])) + 1 if found else inside.count(",") + 1


def _expanded(inside: str) -> list[str]:
    found = _RANGE.fullmatch(inside)
    if not found:
        return inside.split(",")
    first, last = found.groups()
    is_padded = any(end.startswith("0") and len(end) > 1 for end in (first, last))
    width = max(len(first), len(last)) if is_padded else 0
    step = 1 if int(first) <= int(last) else -1
    return [f"{number:0{width}d}" for number in range(int(first), int(last) + step, step)]

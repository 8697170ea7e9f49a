"""The kinds of files that commands write where a user says, and whether a file is of such a kind.

One of the same kind may be replaced: it is what an earlier call left. Anything else is the user's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HEAD = 4096
# Of JSON that is larger nobody waits for the reading; no document of these kinds comes near it.
_MOST_JSON = 1 << 28
_LENGTH = 8  # bytes of safetensors' first number, the length of the JSON header that follows
_TRACE = re.compile(rb'\s*\{\s*"traceEvents"')


@dataclass(frozen=True)
class DocumentKind:
    """A kind of file.

    Attributes:
        name: What a person calls it, after "no" or "an older".
        holds: Whether an existing file is of it.
        is_printed: Whether ``--json`` prints it.
    """

    name: str
    holds: Callable[[Path], bool]
    is_printed: bool = False


def _is_profile(path: Path) -> bool:
    from hvdtrain.scaling.profile import is_profile

    return is_profile(_object(path))


def _is_network(path: Path) -> bool:
    return _object(path).get("kind") == "allreduce"


def _is_page(path: Path) -> bool:
    from hvdtrain.report.page import is_page

    return is_page(path)


def _is_trace(path: Path) -> bool:
    with path.open("rb") as file:
        return _TRACE.match(file.read(_HEAD)) is not None


def _is_model(path: Path) -> bool:
    """Whether a file begins as safetensors does: the header's length, then the header."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length, first = int.from_bytes(file.read(_LENGTH), "little"), file.read(1)
    return first == b"{" and _LENGTH + length <= size


def _object(path: Path) -> Mapping[str, Any]:
    """The object of JSON that a file holds; an empty one where it holds none.

    Raises:
        OSError: It cannot be read.
    """
    if path.stat().st_size > _MOST_JSON:
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError):  # of text that is no UTF-8, too
        return {}
    return found if isinstance(found, dict) else {}


PROFILE = DocumentKind("profile", _is_profile, is_printed=True)
NETWORK = DocumentKind("network file", _is_network, is_printed=True)
TRACE = DocumentKind("trace", _is_trace)
PAGE = DocumentKind("report", _is_page)
MODEL = DocumentKind("safetensors file", _is_model)

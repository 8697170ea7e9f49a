"""What a checkpoint may hold besides tensors: values that are read again without running any code."""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import torch

NOT_PLAIN = "holds more than tensors and plain values"
# How torch.load names what a file wants to be called (PyTorch 2.4 to 2.13).
_WANTED = re.compile(r"GLOBAL (\S+)|[Uu]nsupported (?:class|operand)[: ]+(\S+)")
_PLAIN = (int, float, str, bool, bytes, type(None))
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


class UnreadableError(ValueError):
    """What is to be kept, or was, wants code to be run when it is read."""


def as_plain(value: Any) -> Any:
    """One of NumPy's single numbers as Python's, which is read without NumPy; anything else as it is.

    A rate that was computed with NumPy is such a number: it is a ``float`` too, and so escapes notice.
    """
    is_single = isinstance(value, numpy.generic) or (isinstance(value, numpy.ndarray) and value.ndim == 0)
    return value.item() if is_single else value


def check_readable(state: Any, name: str = "the state", *, is_copied: bool = True) -> None:
    """Refuses what could be written but not read again; tensors are not looked into.

    Args:
        state: Tensors, values and containers.
        name: What it is to the user.
        is_copied: Whether it is what will be written; otherwise a copy will be, with ``as_plain`` of it.

    Raises:
        UnreadableError: With the place in the state and the kind of what stands there.
    """
    for place, value in _odd(state, ""):
        if not _can_be_read(value if is_copied else as_plain(value)):
            kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
            raise UnreadableError(f"{name} {NOT_PLAIN}: {place.removeprefix('.') or 'it'} is a {kind}")


def wanted(error: Exception) -> str:
    """What a file wanted to run, as ``torch.load`` tells it, without its advice of several lines."""
    text = _ESCAPES.sub("", " ".join(str(error).split()))
    matched = _WANTED.search(text)
    return f"it wants {matched[1] or matched[2]}" if matched else text.partition(". ")[0]


def _odd(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Parts that may be unreadable, with their places: there are few of them, and each is tried."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if type(key) not in _PLAIN:
                yield f"a key of {place or 'it'}", key
            yield from _odd(inner, f"{place}.{key}" if isinstance(key, str) else f"{place}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _odd(inner, f"{place}[{index}]")
    elif type(value) not in _PLAIN and not isinstance(value, torch.Tensor):
        yield place, value


def _can_be_read(value: Any) -> bool:
    written = io.BytesIO()
    try:
        torch.save(value, written)
        torch.load(io.BytesIO(written.getvalue()), weights_only=True)
    except (pickle.PickleError, AttributeError, TypeError, RuntimeError, ValueError):
        return False
    return True

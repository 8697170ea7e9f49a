"""Reads a JSON document's fields strictly: what is missing or wrong is named with file and key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtrain.errors import InputError

_LARGEST = 1e30


@dataclass(frozen=True)
class Fields:
    """An object of the document, and where it stands."""

    values: dict[str, Any]
    file: str
    path: str = ""

    def object(self, key: str) -> Fields:
        """A nested object."""
        return Fields(self._of(key, dict, "an object"), self.file, self._name(key))

    def maybe_object(self, key: str) -> Fields | None:
        """A nested object, or None where the value is null or missing."""
        return None if self.values.get(key) is None else self.object(key)

    def objects(self, key: str) -> Iterator[Fields]:
        """The objects of a list."""
        for i, value in enumerate(self._of(key, list, "a list")):
            if not isinstance(value, dict):
                raise self.wrong(f"{key}[{i}]", "must be an object")
            yield Fields(value, self.file, f"{self._name(key)}[{i}]")

    def text(self, key: str) -> str:
        """A string."""
        return str(self._of(key, str, "a string"))

    def number(self, key: str, low: float = 0.0) -> float:
        """A number of at least ``low``, and not so large that sums and products of some are not finite."""
        value = self._of(key, (int, float), "a number")
        if isinstance(value, bool) or not abs(value) <= _LARGEST or value < low:
            raise self.wrong(key, f"is {value}", f"a number of at least {low:g} and at most {_LARGEST:g}")
        return float(value)

    def maybe_number(self, key: str, low: float = 0.0) -> float | None:
        """A number, or None where the value is null or missing."""
        return None if self.values.get(key) is None else self.number(key, low)

    def count(self, key: str, low: int = 0) -> int:
        """A whole number of at least ``low``."""
        value = self.number(key, low)
        if value != int(value):
            raise self.wrong(key, f"is {value:g}", "a whole number")
        return int(value)

    def maybe_count(self, key: str, low: int = 0) -> int | None:
        """A whole number, or None where the value is null or missing."""
        return None if self.values.get(key) is None else self.count(key, low)

    def wrong(self, key: str, what: str, legal: str = "", do: str = "") -> InputError:
        """The error of a key."""
        return InputError(f"{self._name(key)} {what}", where=self.file, legal=legal, do=do)

    def _of(self, key: str, kind: type | tuple[type, ...], word: str) -> Any:
        if key not in self.values:
            raise self.wrong(key, "is missing")
        value = self.values[key]
        if not isinstance(value, kind):
            raise self.wrong(key, f"must be {word}, found {json.dumps(value)[:60]}")
        return value

    def _name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key


def read_document(path: Path, what: str, maker: str) -> Fields:
    """The object in a file, of schema 1.

    Args:
        path: The file.
        what: What it should hold, such as "profile".
        maker: The command that writes one.

    Raises:
        InputError: The file cannot be read, is empty, is no JSON object, or is of another schema.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError:
        raise InputError(
            f"is no {what}: it is no text", where=str(path), do=f"write one with {maker}"
        ) from None
    if not text.strip():
        raise InputError("the file is empty", where=str(path), do=f"write one with {maker}")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:  # Python reads no number of some thousand digits
        place = f"{path}:{error.lineno}" if isinstance(error, json.JSONDecodeError) else str(path)
        raise InputError(f"is no {what}: it is no JSON", where=place, do=f"write one with {maker}") from None
    if not isinstance(document, dict):
        raise InputError(
            f"is no {what}: it holds no JSON object", where=str(path), do=f"write one with {maker}"
        )
    if "schema" not in document:
        raise InputError(f"is no {what}: it has no key schema", where=str(path), do=f"write one with {maker}")
    schema = document.get("schema")
    if schema != 1 or isinstance(schema, bool):
        raise InputError(f"schema {json.dumps(schema)} of a {what}", where=str(path), legal="schema 1")
    return Fields(document, str(path))

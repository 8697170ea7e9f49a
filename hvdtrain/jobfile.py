"""Reads a job file: YAML text and ``--set`` overrides to a validated ``Job``.

The errors name the file, the line and the nearest legal key. ``config`` stays a list of facts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hvdtrain.config import SHORT_FORMS, DigitsData, FactoryData, FolderData, Job, SyntheticData, TarData
from hvdtrain.config.words import SYNONYMS, fault, shown
from hvdtrain.errors import InputError

# One of each pair: an override of one replaces the other where the file gave it.
_EXCLUSIVE = {
    ("batch", "global"): ("batch", "per_rank"),
    ("batch", "per_rank"): ("batch", "global"),
    ("epochs",): ("steps",),
    ("steps",): ("epochs",),
}
_DATA_KINDS: Mapping[str, type[BaseModel]] = {
    "digits": DigitsData,
    "folder": FolderData,
    "tar": TarData,
    "synthetic": SyntheticData,
    "factory": FactoryData,
}
_NO_SECTION = frozenset({"model_type", "model_attributes_type", "dict_type"})
KeyPath = tuple[str, ...]


def load_job(path: Path | None, overrides: Sequence[str] = ()) -> Job:
    """Reads and validates a job.

    Args:
        path: The job file; None for the bundled digits job.
        overrides: ``key=value`` texts, keys with dots, values in YAML.

    Raises:
        InputError: The file or an override is wrong; says where and what is legal.
    """
    if path is None:
        text, origin = (files("hvdtrain") / "digits.yaml").read_text("utf-8"), "digits.yaml"
    else:
        text, origin = _read(path), str(path)
    document, lines = parse_document(text, origin)
    if path is not None and "name" not in document:
        document["name"] = _name_from(path)
    places = {key: f"{origin}:{line}" for key, line in lines.items()}
    _apply(document, places, overrides)
    try:
        return Job.model_validate(document)
    except ValidationError as error:
        raise _explained(error, document, places, origin) from None


def parse_document(text: str, origin: str) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """Parses YAML to a dictionary and the line of each of its keys.

    Raises:
        InputError: Not YAML, empty, not a mapping, a key given twice, or a value that holds itself.
    """
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        # Before the values are made: a mapping that merges itself would never come to an end.
        lines = dict(_key_lines(node, (), origin, ()))
        document = loader.construct_document(node) if node else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise InputError(f"not YAML: {error.problem}", where=f"{origin}{line}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date such as 2024-13-01
        raise InputError(f"not YAML: {error}", where=origin) from None
    except RecursionError:
        raise InputError("values are nested too deeply", where=origin) from None
    if document is None:
        raise InputError(
            "the job file is empty", where=origin, do="see `hvdtrain schema` for what it may hold"
        )
    if not isinstance(document, dict):
        kind = {"list": "a list", "str": "a text"}.get(type(document).__name__, type(document).__name__)
        raise InputError(f"the job file holds {kind}", where=origin, legal="a mapping of keys to values")
    return document, lines


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise InputError("no such job file", where=str(path)) from None
    except IsADirectoryError:
        raise InputError("is a folder, not a job file", where=str(path)) from None
    except UnicodeDecodeError as error:
        raise InputError(f"not a text in UTF-8 (byte {error.start})", where=str(path)) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None


def _name_from(path: Path) -> str:
    """A legal job name from the file's name: what is not a letter, digit, dot or dash becomes a dash."""
    stem = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in path.stem)
    return stem.lstrip("._-")[:200] or "job"


def _key_lines(
    node: yaml.Node | None, path: KeyPath, origin: str, parents: tuple[yaml.Node, ...]
) -> Iterator[tuple[KeyPath, int]]:
    if node in parents:
        where = f"{origin}:{parents[-1].start_mark.line + 1}"
        raise InputError("an alias (*) names a value that it is itself a part of", where=where)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*path, str(index)), item.start_mark.line + 1
            yield from _key_lines(item, (*path, str(index)), origin, (*parents, node))
    if not isinstance(node, yaml.MappingNode):
        return
    seen: dict[str, int] = {}
    for key, value in node.value:
        name, line = str(key.value), key.start_mark.line + 1
        if name in seen:
            raise InputError(
                f"key {name!r} is given twice, first in line {seen[name]}", where=f"{origin}:{line}"
            )
        seen[name] = line
        yield (*path, name), line
        yield from _key_lines(value, (*path, name), origin, (*parents, node))


def _apply(document: dict[str, Any], places: dict[KeyPath, str], overrides: Sequence[str]) -> None:
    """Puts the overrides into the document; the last one of a key wins."""
    given: set[KeyPath] = set()
    for override in overrides:
        key, sign, text = override.partition("=")
        where = f"--set {override}"
        path = tuple(key.strip().split("."))
        if not sign or not all(path):
            raise InputError("not of the form key=value", where=where, legal="--set optimizer.lr=0.1")
        if not text.strip():
            do = f"write --set {key}=VALUE, or null to leave the key out"
            raise InputError(f"no value is given for {key}", where=where, do=do)
        _assign(document, path, _value(text, where), where)
        if (other := _EXCLUSIVE.get(path)) and other not in given:
            _remove(document, other)
        given.add(path)
        for depth in range(1, len(path)):
            places.setdefault(path[:depth], where)
        for replaced in [key for key in places if key[: len(path)] == path]:
            del places[replaced]
        places[path] = where


def _value(text: str, where: str) -> Any:
    """The value of an override; what is not YAML is a text."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return text
    except RecursionError:
        raise InputError("values are nested too deeply", where=where) from None


def _assign(document: dict[str, Any], path: KeyPath, value: Any, where: str) -> None:
    section = document
    for depth, name in enumerate(path[:-1]):
        inner = section.get(name)
        if depth == 0 and name in SHORT_FORMS and isinstance(inner, str):
            inner = {SHORT_FORMS[name]: inner}
        if inner is None:
            inner = {}
        if not isinstance(inner, dict):
            raise InputError(f"{'.'.join(path[: depth + 1])} holds a value, not a section", where=where)
        section[name] = inner = dict(inner)
        section = inner
    section[path[-1]] = value


def _remove(document: dict[str, Any], path: KeyPath) -> None:
    section: Any = document
    for name in path[:-1]:
        section = section.get(name)
        if not isinstance(section, dict):
            return
    section.pop(path[-1], None)


def _explained(
    error: ValidationError, document: Mapping[str, Any], places: Mapping[KeyPath, str], origin: str
) -> InputError:
    """The first of pydantic's errors as one line in the words of the job file."""
    # A misspelt key often shows up as a missing one too: the misspelling is the cause.
    found = error.errors(include_url=False)
    first = next((item for item in found if item["type"] in ("extra_forbidden", "invalid_key")), found[0])
    # The tag of the kind of data stands in pydantic's path, not in the user's file.
    path = tuple(str(part) for part in first["loc"])
    if path[:1] == ("data",) and len(path) > 1 and path[1] in _DATA_KINDS:
        path = ("data", *path[2:])
    if first["type"] == "unfit_argument":
        path += first["ctx"]["path"]
    where = _place(path, first["msg"], places, origin)
    if first["type"] == "extra_forbidden":
        return _unknown_key(path, document, where)
    return InputError(_told(path, first), where=where, legal=_legal(path, first["type"], document))


def _place(path: KeyPath, message: str, places: Mapping[KeyPath, str], origin: str) -> str:
    """Where the cause of an error stands: an override, or else a line of the file."""
    # An error of a whole section, such as one of two keys that exclude each other, names the keys.
    named = [places[(*path, word)] for word in re.findall(r"\w+", message) if (*path, word) in places]
    # What is missing may be so because of the kind that an override chose.
    kinds = [(*path[:-1], word) for word in ("source", "name")] if path[1:] and path not in places else []
    chosen = named + [places[key] for key in kinds if key in places]
    override = next((place for place in chosen if place.startswith("--set ")), None)
    if override or named:
        return override or named[0]
    return next((places[path[:n]] for n in range(len(path), 0, -1) if path[:n] in places), origin)


def _told(path: KeyPath, item: ErrorDetails) -> str:
    """What is wrong, without where it stands and what would be legal."""
    kind, value, key = item["type"], item.get("input"), ".".join(path)
    if kind == "invalid_key":
        return f"key {key} is no text"
    is_part = bool(path) and path[-1].isdecimal() and kind != "unfit_argument"
    if is_part:
        key = f"{'.'.join(path[:-1])} (value {int(path[-1]) + 1})"
    if kind == "missing":
        return f"{key} is missing" if is_part else f"key {key!r} is missing"
    if kind in _NO_SECTION:
        return f"{key} must be a section, found {shown(value)}"
    if kind == "too_long":
        return f"{key}: {fault(item)}, found {item['ctx']['actual_length']}"
    if kind == "data_source" and isinstance(value, dict):
        value = value.get("source")
    what = f"{key}: {fault(item)}" if key else fault(item)
    # The message of a section that is wrong as a whole says what was found.
    return what if "found" in what or isinstance(value, dict | list) else f"{what}, found {shown(value)}"


def _legal(path: KeyPath, kind: str, document: Mapping[str, Any]) -> str:
    if kind in ("invalid_key", "missing"):
        return ", ".join(_fields(path[:-1], document))
    return ", ".join(_fields(path, document)) if kind in _NO_SECTION else ""


def _unknown_key(path: KeyPath, document: Mapping[str, Any], where: str) -> InputError:
    legal = _fields(path[:-1], document)
    kinds = [kind for kind, model in _DATA_KINDS.items() if path[-1] in model.model_fields]
    if path[:-1] == ("data",) and kinds:
        users = ", ".join(kinds).replace("factory", "package.module:factory")
        what = f"data.{path[-1]} is not used by source {_source(document)}; legal with {users}"
        return InputError(what, where=where)
    meant = _meant(path, legal)
    do = f"did you mean {meant!r}?" if meant else ""
    return InputError(f"unknown key {'.'.join(path)!r}", where=where, legal=", ".join(legal), do=do)


def _source(document: Mapping[str, Any]) -> str:
    """What the file gives as the source of its data."""
    data = document.get("data")
    return str(data.get("source") if isinstance(data, dict) else data)


def _meant(path: KeyPath, legal: Sequence[str]) -> str:
    """The key that a user may have meant: known by another name, misspelt, or in another section."""
    section, name = ".".join(path[:-1]), path[-1]
    usual = SYNONYMS.get(name.lower(), "")
    if usual and (not section or usual.startswith(f"{section}.")):
        return usual
    sections = {key: _fields((key,), {"data": "folder"}) for key in _fields((), {})}
    if places := [f"{key}.{name}" for key, fields in sections.items() if name in fields]:
        return places[0]
    return next(iter(get_close_matches(name, legal, n=1, cutoff=0.5)), usual)


def _fields(path: KeyPath, document: Mapping[str, Any]) -> list[str]:
    """The legal keys of a section, as they are written in a job file."""
    model: type[BaseModel] = Job
    for name in path:
        if name == "data":
            model = _DATA_KINDS.get(_source(document), FactoryData)
            continue
        field = next((f for n, f in model.model_fields.items() if (f.alias or n) == name), None)
        annotation = field.annotation if field else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        model = annotation
    return [field.alias or name for name, field in model.model_fields.items()]

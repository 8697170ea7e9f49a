"""The kinds of values that stand in a job file: which YAML values each of them takes."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema, PydanticCustomError

FACTORY_PATTERN = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"
_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
_LONGEST_NAME = 200  # of a folder's 255, room for -2, -3 and so on
# Far below the 200 levels at which pydantic's JSON reader stops.
_DEEPEST = 64


def _refuse_bool(value: Any) -> Any:
    """YAML's yes, no, on and off are booleans, which Python would take for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _refuse_no_integer(value: Any) -> Any:
    """As above; and 1e6 is a text to PyYAML, and no integer to YAML."""
    if isinstance(value, bool):
        raise ValueError("must be a whole number")
    if isinstance(value, str) and re.fullmatch(r"[\d.]+[eE]\+?\d+", value):
        raise ValueError("must be a whole number, written out in digits")
    return value


def _refuse_other_than_int(value: Any) -> Any:
    """For literals, which compare with ``==``: 3.0 is no 3 and true no 1."""
    if type(value) is not int:
        raise ValueError("must be a whole number")
    return value


def _refuse_no_factory(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(FACTORY_PATTERN, value):
        raise ValueError("must be package.module:factory")
    return value


def _refuse_no_name(value: Any) -> Any:
    """A job's name is the name of a folder."""
    if isinstance(value, str) and not re.fullmatch(_NAME_PATTERN, value):
        raise ValueError("must begin with a letter or digit and hold only letters, digits, '.', '_' and '-'")
    if isinstance(value, str) and len(value) > _LONGEST_NAME:
        raise ValueError(f"must have at most {_LONGEST_NAME} characters")
    return value


def _refuse_no_model(value: Any) -> Any:
    """What has a colon is a factory, unless it is one of torchvision's models."""
    if isinstance(value, str) and (not value.strip() or (":" in value and not _is_model(value))):
        raise ValueError("must be a model's name, torchvision:NAME or package.module:factory")
    return value


def _is_model(name: str) -> bool:
    return bool(name.removeprefix("torchvision:").isidentifier() or re.fullmatch(FACTORY_PATTERN, name))


def _expand_home(value: Any) -> Any:
    """A leading ``~`` is what it is in a shell."""
    text = str(value) if isinstance(value, str | Path) else ""
    if not text.strip() or not _is_text(text) or "\0" in text:
        raise ValueError("must be a path")
    if not text.startswith("~"):
        return value
    path = os.path.expanduser(text)
    if path.startswith("~"):
        raise ValueError(f"{Path(text).parts[0]} is no user's home folder that this machine knows")
    return path


def _refuse_unfit(arguments: Any) -> Any:
    """A job travels to its ranks as JSON: what would get there as something else is refused."""
    if isinstance(arguments, dict) and (unfit := _first_unfit(arguments, ())):
        path, reason = unfit
        raise PydanticCustomError("unfit_argument", "{reason}", {"path": path, "reason": reason})
    return arguments


def _first_unfit(value: Any, path: tuple[str, ...]) -> tuple[tuple[str, ...], str] | None:
    """Path and fault of the first value that is not plain data, None where all are."""
    if len(path) > _DEEPEST:
        return path[:1], f"must not be nested deeper than {_DEEPEST} levels"
    if isinstance(value, list | dict):
        if isinstance(value, dict) and (keys := [key for key in value if not _is_text(key)]):
            return path, f"keys must be text, found {keys[0]!a:.40}: quote it"
        items = value.items() if isinstance(value, dict) else enumerate(value)
        found = (_first_unfit(item, (*path, str(key))) for key, item in items)
        return next(filter(None, found), None)
    if isinstance(value, float) and not math.isfinite(value):
        return path, f"must be a finite number, found {value}"
    if value is None or isinstance(value, bool | int | float) or _is_text(value):
        return None
    legal = "must be text, a number, true, false, null, a list or a mapping"
    shown = ascii(value) if isinstance(value, str) else str(value)
    return path, f"{legal}, found {type(value).__name__} {shown:.40}: quote it if it is text"


def _is_text(value: Any) -> bool:
    # "\ud800" is half a character: YAML can write it, UTF-8 and so JSON cannot.
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


_number = BeforeValidator(_refuse_bool)
# A text is no integer and neither is 3.0. Where a real number is meant a text of digits is taken:
# PyYAML reads 1e-1, which has no point, as a text.
Integer = Annotated[int, BeforeValidator(_refuse_no_integer), Field(strict=True)]
# The limits are far above what anybody means: they catch a slip of the keyboard before it fills the memory.
Count = Annotated[Integer, Field(ge=1, le=2**32)]
Natural = Annotated[Integer, Field(ge=0, le=2**32)]
Workers = Annotated[Integer, Field(ge=0, le=1024)]
Pixels = Annotated[Integer, Field(ge=1, le=65_536)]
Positive = Annotated[float, _number, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, _number, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, _number, Field(ge=0, lt=1, allow_inf_nan=False)]
Share = Annotated[float, _number, Field(gt=0, le=1)]
Flag = Annotated[bool, Field(strict=True)]
Channels = Annotated[Literal[1, 3], BeforeValidator(_refuse_other_than_int)]
Factory = Annotated[
    str,
    BeforeValidator(_refuse_no_factory),
    WithJsonSchema({"type": "string", "pattern": FACTORY_PATTERN}),
]
JobName = Annotated[
    str,
    BeforeValidator(_refuse_no_name),
    WithJsonSchema({"type": "string", "pattern": _NAME_PATTERN, "maxLength": _LONGEST_NAME}),
]
ModelName = Annotated[str, BeforeValidator(_refuse_no_model), Field(min_length=1)]
FilePath = Annotated[
    Path,
    BeforeValidator(_expand_home),
    WithJsonSchema({"type": "string", "format": "path", "minLength": 1}),
]
FolderName = Annotated[str, Field(min_length=1)]
Arguments = Annotated[dict[str, Any], BeforeValidator(_refuse_unfit)]


class OrText:
    """Adds a section's short form, a text, to the JSON schema."""

    def __init__(self, *texts: dict[str, Any]) -> None:
        self._texts = texts

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [*self._texts, handler(core)]}

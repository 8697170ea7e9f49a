"""The list ``metrics`` of a job file: what is measured on the validation data."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from hvdtrain.config.values import FACTORY_PATTERN

_NAMES = ("accuracy", "auroc", "confusion", "precision", "recall", "f1")
_TOP_PATTERN = r"^top[1-9][0-9]{0,5}$"


def _refuse_unknown(value: Any) -> Any:
    known = isinstance(value, str) and (
        value in _NAMES or re.fullmatch(_TOP_PATTERN, value) or re.fullmatch(FACTORY_PATTERN, value)
    )
    if not known:
        raise ValueError(f"must be {', '.join(_NAMES)}, top5 (or another number) or package.module:factory")
    return value


def _refuse_doubles(values: tuple[str, ...]) -> tuple[str, ...]:
    shown = [value.rpartition(":")[2] for value in values]
    if doubles := [name for name in shown if shown.count(name) > 1]:
        raise ValueError(f"two metrics are called {doubles[0]}")
    return values


MetricName = Annotated[
    str,
    BeforeValidator(_refuse_unknown),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(_NAMES)},
                {"type": "string", "pattern": _TOP_PATTERN},
                {"type": "string", "pattern": FACTORY_PATTERN},
            ]
        }
    ),
]
MetricNames = Annotated[tuple[MetricName, ...], AfterValidator(_refuse_doubles)]

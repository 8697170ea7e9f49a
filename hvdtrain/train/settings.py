"""What holds for a whole run of a script, and where it is said: in ``hvdtrain.start`` or by a variable."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hvdtrain.errors import InputError

BACKENDS = ("auto", "horovod", "ddp", "single")
_BACKEND, _STALL_S = "HVDTRAIN_BACKEND", "HVDTRAIN_STALL_S"
DEFAULT_STALL_S = 300.0


@dataclass(frozen=True)
class Settings:
    """What holds for a whole run; see ``hvdtrain.start``.

    Attributes:
        seed: Of the order of samples and of random generators.
        accumulate: Passes that make a step.
        precision: Of ``Run.autocast``.
        stall_s: How long a rank may wait in one call for others.
    """

    seed: int = 0
    accumulate: int = 1
    precision: str = "fp32"
    stall_s: float = DEFAULT_STALL_S


def chosen_backend(given: str, environ: Mapping[str, str]) -> str:
    """The engine that a script names, or the launch where the script leaves it open.

    Args:
        given: What ``start`` got.
        environ: This process's environment.

    Raises:
        InputError: The variable names none.
    """
    named = environ.get(_BACKEND, "")
    if given != "auto" or not named:
        return given
    if named not in BACKENDS:
        raise InputError(f"{_BACKEND} is {named!r}", legal=", ".join(BACKENDS))
    return named


def chosen_stall_s(given: object, environ: Mapping[str, str]) -> float:
    """How long a rank may wait in one call for others, in seconds.

    Args:
        given: What ``start`` got; None leaves it to the variable, and else to the default.
        environ: This process's environment.

    Raises:
        InputError: It is no positive number.
    """
    named = environ.get(_STALL_S, "")
    if given is None and not named:
        return DEFAULT_STALL_S
    name, value = (f"{_STALL_S} is", named) if given is None else ("start got stall_s", given)
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = math.nan
    if not seconds > 0:
        raise InputError(f"{name} {value!r}", legal="a positive number of seconds")
    return seconds

"""What a profile is asked to measure, and the variables that carry it to the ranks. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.errors import InputError

FILE = "HVDTRAIN_PROFILE"
STEPS = "HVDTRAIN_PROFILE_STEPS"
WARM_UP = "HVDTRAIN_PROFILE_WARMUP"
TRACE = "HVDTRAIN_PROFILE_TRACE"
DEFAULT_STEPS, DEFAULT_WARM_UP = 50, 10
LEAST_STEPS = 2  # of one step nothing is known of how steps vary


@dataclass(frozen=True)
class ProfileRequest:
    """What to measure.

    Attributes:
        steps: Steps that are timed.
        warm_up: Steps before them.
        file: Where rank 0 writes the profile; None where it is told to the launcher.
        trace: Where rank 0 writes a trace; None for none.
    """

    steps: int = DEFAULT_STEPS
    warm_up: int = DEFAULT_WARM_UP
    file: Path | None = None
    trace: Path | None = None

    def environment(self) -> dict[str, str]:
        """The variables."""
        paths = {FILE: self.file, TRACE: self.trace}
        given = {name: str(path.absolute()) for name, path in paths.items() if path is not None}
        return {STEPS: str(self.steps), WARM_UP: str(self.warm_up), **given}


def asked_profile(environ: Mapping[str, str]) -> ProfileRequest:
    """The request that an environment carries.

    Raises:
        InputError: A number of steps is none.
    """
    file, trace = environ.get(FILE, ""), environ.get(TRACE, "")
    return ProfileRequest(
        _count(environ, STEPS, DEFAULT_STEPS, LEAST_STEPS),
        _count(environ, WARM_UP, DEFAULT_WARM_UP, 1),
        Path(file) if file else None,
        Path(trace) if trace else None,
    )


def _count(environ: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = environ.get(name, "") or str(default)
    if not (text.isascii() and text.isdecimal() and int(text) >= least):
        raise InputError(f"{name} is {text!r}", legal=f"a whole number of at least {least}")
    return int(text)

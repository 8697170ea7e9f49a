"""Kinds of values that options take, with errors in the words of this program, and what follows from them."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import Any

import click
from click.types import IntParamType, StringParamType

_MAX_RANKS = 1_000_000  # far above any machine: a slip of the keyboard is told before a table is made for it


class FilledPath(click.Path):
    """A path; an empty text, as of a variable of a script that is not set, is none."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, or click's usage error."""
        if not str(value).strip():
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


class FilledText(StringParamType):
    """A text; an empty one is none, as for ``FilledPath``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The text, or click's usage error."""
        if not str(value).strip():
            self.fail("the value is empty", param, ctx)
        return super().convert(value, param, ctx)


class RankCount(IntParamType):
    """A number of ranks."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number, or click's usage error."""
        # Python reads no number of some thousand digits.
        if not (str(value).isdecimal() and len(str(value)) <= 18 and 1 <= int(value) <= _MAX_RANKS):
            self.fail(f"must be a whole number from 1 to {_MAX_RANKS}, found {str(value)!r}", param, ctx)
        return int(value)


def refuse_nan(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """A callback for seconds: click's ranges take what compares with nothing.

    Raises:
        click.BadParameter: The value is no number.
    """
    if value is not None and isnan(value):
        raise click.BadParameter("nan is no number of seconds", ctx, param)
    return value


def import_folders(job: Path | None) -> list[str]:
    """Where factories of the user's are looked for: the working and the job file's folder."""
    folders = [Path.cwd(), job.resolve().parent] if job else [Path.cwd()]
    return [str(folder) for folder in dict.fromkeys(folders)]

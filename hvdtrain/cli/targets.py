"""Files that a user names to be written: what is wrong with one is told before anything is measured."""

from __future__ import annotations

import os
from pathlib import Path

from hvdtrain.errors import InputError


def check_target(option: str, path: Path | None, *inputs: Path) -> None:
    """Refuses a place where no file may be written, or that holds something else.

    Args:
        option: The option that names it.
        path: Where the file is to go, or replaces a regular one; None where no file was asked for.
        inputs: What the command reads.

    Raises:
        InputError: It is a folder, a device or another special file, or an input; or its folder is missing.
    """
    if path is None:
        return
    if path.is_dir():
        raise InputError(f"{path} is a folder", where=option, do="name a file")
    if not path.absolute().parent.is_dir():
        raise InputError(f"there is no folder {path.parent}", where=option, do="make it first")
    if path.exists() and not path.is_file():
        raise InputError(
            f"{path} is no regular file", where=option, do="name another; with --json it goes to stdout"
        )
    if path.exists() and any(is_same_place(path, one) for one in inputs):
        raise InputError(f"{path} is the input itself", where=option, do="name another")


def is_same_place(one: Path, other: Path) -> bool:
    """Whether two names, be they links, lead to one place; nothing need be there."""
    return os.path.realpath(one) == os.path.realpath(other)

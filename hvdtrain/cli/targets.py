"""Files that a user names to be written: what is wrong with one is told before anything is measured."""

from __future__ import annotations

import os
from pathlib import Path

from hvdtrain.cli.documents import DocumentKind
from hvdtrain.errors import InputError


def check_target(option: str, path: Path | None, *inputs: Path, kind: DocumentKind) -> None:
    """Refuses a place where no file may be written, or that holds something else.

    Args:
        option: The option that names it.
        path: Where the file is to go; None where no file was asked for. It may replace an older one of its
            kind, and an empty one, in which nothing can be lost.
        inputs: What the command reads.
        kind: What is written.

    Raises:
        InputError: It is a folder, a device or another special file, an input, or a file of another kind; its
            folder is missing; or the user may not write there.
    """
    if path is None:
        return
    try:
        _check_place(option, path, inputs, kind)
        # A link stays one: what it leads to is written.
        folder = Path(os.path.realpath(path)).parent
        if not os.access(folder, os.W_OK | os.X_OK):
            raise InputError(
                f"{path} cannot be written: no right to write in {folder}", where=option, do="name another"
            )
        is_filled = path.exists() and path.stat().st_size > 0
        if is_filled and not kind.holds(path):
            raise InputError(
                f"{path} is there already, and no {kind.name}",
                where=option,
                legal=f"a new file, or an older {kind.name}",
                do="name another, or remove it",
            )
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror}", where=option, do="name another"
        ) from None


def _check_place(option: str, path: Path, inputs: tuple[Path, ...], kind: DocumentKind) -> None:
    if path.is_dir():
        raise InputError(f"{path} is a folder", where=option, do="name a file")
    if not path.absolute().parent.is_dir():
        raise InputError(f"there is no folder {path.parent}", where=option, do="make it first")
    if path.exists() and not path.is_file():
        do = "name another" + ("; with --json it goes to stdout" if kind.is_printed else "")
        raise InputError(f"{path} is no regular file", where=option, do=do)
    if path.exists() and any(is_same_place(path, one) for one in inputs):
        raise InputError(f"{path} is the input itself", where=option, do="name another")


def is_same_place(one: Path, other: Path) -> bool:
    """Whether two names, be they links, lead to one place; nothing need be there."""
    return os.path.realpath(one) == os.path.realpath(other)

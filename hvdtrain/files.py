"""Files that outlive a crash: what a disk must have before a rename may be trusted."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path


def sync(path: Path) -> None:
    """Waits until a file's content, or a folder's list of names, is on the disk (fsync(2))."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, text: str) -> None:
    """Writes a file beside its place, then renames it there: readers see the old or the new one whole.

    A link stays one: what it leads to is replaced.
    """
    path = Path(os.path.realpath(path))
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            # Without it the new name may outlive a crash, and the content not: an empty file.
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        with suppress(OSError):  # which would hide the first one
            beside.unlink(missing_ok=True)
        raise

"""Copies what a rank prints into its log, where the launcher that started it is not ours."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any, TextIO, cast


def copy_output(path: Path) -> None:
    """From now on, what Python code of this process prints on stdout or stderr goes into a file too.

    What native code writes to the descriptors themselves does not.
    """
    log = path.open("a", buffering=1, encoding="utf-8", errors="replace")
    sys.stdout = cast(TextIO, _Copied(sys.stdout, log))
    sys.stderr = cast(TextIO, _Copied(sys.stderr, log))


class _Copied:
    """A text stream whose text is also written to a log; in all else it is the stream."""

    def __init__(self, stream: TextIO, log: TextIO) -> None:
        self._stream, self._log = stream, log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes to both; a log that cannot be written ends no training."""
        with contextlib.suppress(OSError, ValueError):
            self._log.write(text)
        return self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        """Writes each line to both."""
        for line in lines:
            self.write(line)

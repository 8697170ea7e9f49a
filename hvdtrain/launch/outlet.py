"""Where a rank's lines go: frames to the supervisor, lines to the rank's log, the last errors into memory."""

from __future__ import annotations

import json
import os
import select
import time
from collections import deque
from pathlib import Path
from typing import Any, BinaryIO

from hvdtrain.errors import InputError
from hvdtrain.launch.frames import EVENT_MARK, encode
from hvdtrain.launch.last_words import LastWords

TAIL_LINES = 200
_TAIL_WIDTH = 2000
_MAX_LINE = 1 << 20  # a longer line is handed on in parts: memory stays bounded
_PROGRESS_S = 1.0  # how long a progress bar may move unseen


class LineBuffer:
    """Cuts what a program prints into lines; a progress bar is one that only ends when it is full."""

    def __init__(self) -> None:
        self._rest = b""
        self._since = 0.0
        self._is_shown = False  # whether the line that goes on was shown so far

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """Takes output; returns the lines that it completes, without their newlines."""
        if not self._rest:
            self._since = now
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines:
            self._since = now
            if self._is_shown and not lines[0].strip(b"\r"):
                del lines[0]  # nothing but the newline was still to come
            self._is_shown = False
        if len(self._rest) > _MAX_LINE:
            lines, self._rest = [*lines, self._rest], b""
        return lines

    def progress(self, now: float) -> list[bytes]:
        """The line that goes on, if it is a progress bar that has not been shown for a while."""
        if b"\r" not in self._rest or now - self._since < _PROGRESS_S:
            return []
        self._is_shown = True
        return self.close()

    def close(self) -> list[bytes]:
        """What is left without a newline, if anything."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


class Outlet:
    """Takes what one rank prints.

    Attributes:
        log: The rank's log, if it has one.
        tail: The last ``TAIL_LINES`` lines of stderr.
        last_words: What is held back of it.
        program_pid: The rank's own process; None before it was started.
        uncaught_at: When it said that it dies of an uncaught exception, seconds since 1970; None if never.
    """

    def __init__(self, rank: int, log: BinaryIO | None = None, fd: int = 2) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.last_words = LastWords(lambda text: self.send({"stderr": text}))
        self.program_pid: int | None = None
        self.uncaught_at: float | None = None
        self.log = log
        self._rank, self._fd = rank, fd

    def send(self, content: dict[str, Any]) -> None:
        """Sends one message.

        Raises:
            BrokenPipeError: The supervisor is gone.
        """
        for block in encode(self._rank, content):
            _write(self._fd, block)

    def line(self, stream: str, raw: bytes) -> None:
        """Takes one line that the child printed on ``stdout`` or ``stderr``, without its newline."""
        text = raw.decode("utf-8", errors="replace").rstrip("\r")
        if text.startswith(EVENT_MARK) and self._event(text[len(EVENT_MARK) :]):
            return
        text = text[text.rfind("\r") + 1 :]  # of a progress bar, what a terminal would show
        self._write_log(text)
        if stream == "stderr":
            self.tail.append(text[:_TAIL_WIDTH])
            if self.last_words.take(text, time.monotonic()):
                return
        else:
            self.last_words.pass_by()
        self.send({stream: text})

    def keep(self, text: str) -> None:
        """Keeps a line for the log and among the last words, which the supervisor tells of one rank only."""
        self.tail.append(text)
        self._write_log(text)

    def _write_log(self, text: str) -> None:
        if self.log is None:
            return
        try:
            self.log.write(text.encode("utf-8", errors="replace") + b"\n")
        except OSError as error:
            self.log = None
            self.send({"stderr": f"hvdtrain: the log of rank {self._rank} ends here: {error.strerror}"})

    def _event(self, text: str) -> bool:
        try:
            event = json.loads(text)
        except ValueError:
            return False
        if not isinstance(event, dict):
            return False
        if "raising" in event:
            self.last_words.begin(time.monotonic())
        elif "uncaught" in event:
            is_own = event.get("pid") == self.program_pid
            self.last_words.end(is_lost=is_own)
            self.uncaught_at = time.time() if is_own else self.uncaught_at
        else:
            self.send({"event": event})
        return True


def open_log(log_dir: str | None, rank: int) -> BinaryIO | None:
    """Opens ``LOG_DIR/rank-N.log`` for appending; None without a folder.

    Raises:
        InputError: The file cannot be written.
    """
    if log_dir is None:
        return None
    path = Path(log_dir) / f"rank-{rank}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "ab", buffering=0)  # open until the process ends
    except OSError as error:
        raise InputError(f"the log {path} cannot be written: {error.strerror}") from None


def _write(fd: int, data: bytes) -> None:
    """Writes all of it, also where the launcher made the pipe non-blocking."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            select.select([], [fd], [])

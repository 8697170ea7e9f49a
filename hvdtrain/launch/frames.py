r"""Messages of many ranks on one byte stream.

Launchers join the output of all ranks by blocks of bytes: Open MPI 4 reads 4,096 from each rank's pipe and
writes them on, wherever a line ends, and Slurm 1,024. Lines of two ranks then stand in each other. So a
message travels in frames of one fixed size that divides all of these: a block holds whole frames. They go
through stderr, because Open MPI 4 makes a rank's stdout a terminal, which cuts and alters what passes.

A frame is ``\x1e``, the rank, ``+`` (the message goes on in this rank's next frame) or ``.``, a piece of
JSON in ASCII, blanks, and a newline: ``FRAME_SIZE`` bytes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

FRAME_SIZE = 512

# Frames that one write may carry: a pipe takes up to 4,096 bytes (PIPE_BUF) in one piece.
FRAMES_PER_WRITE = 4096 // FRAME_SIZE

# A line of a rank's output that begins so is an event for the caller: JSON follows.
EVENT_MARK = "\x1ehvdtrain "

_START = "\x1e"


class Message(NamedTuple):
    """What a rank's agent sent."""

    rank: int
    content: dict[str, Any]


def encode(rank: int, content: dict[str, Any]) -> Iterator[bytes]:
    """The message as blocks of whole frames, each to be written with one call."""
    text = json.dumps(content, separators=(",", ":"))
    room = FRAME_SIZE - len(f"{_START}{rank}+\n")
    pieces = [text[start : start + room] for start in range(0, len(text), room)]
    frames = [f"{_START}{rank}+{piece}\n" for piece in pieces[:-1]]
    frames.append(f"{_START}{rank}.{pieces[-1]:<{room}}\n")
    for start in range(0, len(frames), FRAMES_PER_WRITE):
        yield "".join(frames[start : start + FRAMES_PER_WRITE]).encode("ascii")


class FrameReader:
    """Takes a stream apart into the agents' messages and foreign lines, such as the launcher's own."""

    def __init__(self) -> None:
        self._rest = b""
        self._pieces: defaultdict[int, list[str]] = defaultdict(list)

    def feed(self, data: bytes) -> Iterator[Message | str]:
        """Hands over what became complete with these bytes, in order."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield from self._line(line.decode("utf-8", errors="replace"))

    def close(self) -> Iterator[Message | str]:
        """Hands over what stands in an unfinished last line."""
        rest, self._rest = self._rest, b""
        if rest:
            yield from self._line(rest.decode("utf-8", errors="replace"))

    def _line(self, line: str) -> Iterator[Message | str]:
        foreign, start, frame = line.partition(_START)
        if foreign or not start:
            yield foreign.rstrip("\r")
        if start:
            yield from self._frame(frame)

    def _frame(self, frame: str) -> Iterator[Message | str]:
        digits = len(frame) - len(frame.lstrip("0123456789"))
        if not digits or frame[digits : digits + 1] not in ("+", "."):
            yield frame
            return
        rank, piece = int(frame[:digits]), frame[digits + 1 :]
        self._pieces[rank].append(piece)
        if frame[digits] == "+":
            return
        text = "".join(self._pieces.pop(rank))
        try:
            content = json.loads(text)
        except ValueError:
            yield text
            return
        yield Message(rank, content)

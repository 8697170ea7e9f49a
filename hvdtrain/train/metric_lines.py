"""Takes up ``metrics.jsonl`` where a run goes on: what will be done again is left out. Imports no torch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hvdtrain.files import write_atomically
from hvdtrain.train.schedule import Position


def drop_after(metrics: Path, start: Position) -> str:
    """Leaves out the lines of what will be done again, and those that are none.

    A position inside an epoch, or at its very end, lies before the evaluation that its step may have: that of
    a whole epoch is done again, and that of a run whose length ended there has no place in a longer one.

    Args:
        metrics: The file; nothing is done where there is none.
        start: Where the run goes on.

    Returns:
        What was found besides whole lines, for the user; empty where nothing was. A last line that was cut
        short is left out; others that are none are moved to ``metrics.unreadable`` beside it.
    """
    if not metrics.exists():
        return ""
    *lines, last = metrics.read_bytes().split(b"\n")
    kept, strange = [], []
    for line in filter(None, (*lines, last)):
        told = _told(line)
        if told is None:
            strange.append(line)
        elif not _is_again(told, start):
            kept.append(line)
    torn = strange.pop() if strange and strange[-1] is last else b""
    beside = metrics.with_name("metrics.unreadable")
    if strange:
        with beside.open("ab") as file:
            file.writelines(line + b"\n" for line in strange)
            file.flush()
            os.fsync(file.fileno())
    write_atomically(metrics, "".join(f"{line.decode('utf-8')}\n" for line in kept))
    notes = ["its last line was cut short and is left out"] if torn else []
    if strange:
        count = "1 line" if len(strange) == 1 else f"{len(strange)} lines"
        notes.append(f"{count} that cannot be read went to {beside.name}")
    return f"{metrics.name}: {'; '.join(notes)}" if notes else ""


def _told(line: bytes) -> dict[str, Any] | None:
    """What a line tells; None of one that no run writes."""
    try:
        told = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    is_one = isinstance(told, dict) and type(told.get("step")) is int
    return told if is_one else None


def _is_again(told: dict[str, Any], start: Position) -> bool:
    if told["step"] == start.step:
        return "validation_loss" in told and start.consumed > 0
    return bool(told["step"] > start.step)

"""Puts together what the ranks of a run that stands still report, through a folder that they share."""

from __future__ import annotations

import faulthandler
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

AUTOPSY = "autopsy.txt"
_PARTS = ".autopsy"
# Ranks notice within moments of each other; this is what the last one gets to write its report.
_GATHER_S = 3.0
# What the one that tells gets for it before the others end.
_TELL_FIRST_S = 1.0
_SHOWN = 8


def put_together(folder: Path, rank: int, head: str, judge: Callable[[dict[int, str]], str]) -> str:
    """Writes this rank's report; the lowest rank that has one makes the autopsy of all.

    Args:
        folder: Is there and seen by all ranks that are to be in it.
        rank: This rank.
        head: The report's first line; every thread's stack follows.
        judge: Makes the verdict, in a line, of the reports by rank.

    Returns:
        What to tell the user; empty on the ranks that leave it to another one.
    """
    try:
        return _put_together(folder, rank, head, judge)
    except OSError as error:  # a full disk must not keep the rank from its end
        return f"{head} ({folder}: {error.strerror})"


def _put_together(folder: Path, rank: int, head: str, judge: Callable[[dict[int, str]], str]) -> str:
    parts = folder / _PARTS
    parts.mkdir(exist_ok=True)
    with (parts / f"rank-{rank}.part").open("w", encoding="utf-8") as file:
        file.write(f"{head}\n")
        file.flush()
        faulthandler.dump_traceback(file, all_threads=True)
    (parts / f"rank-{rank}.part").replace(parts / f"rank-{rank}")
    time.sleep(_GATHER_S)
    reports = {
        int(path.name[5:]): path.read_text("utf-8")
        for path in parts.glob("rank-*")
        if path.name[5:].isdigit()
    }
    if rank != min(reports):
        time.sleep(_TELL_FIRST_S)
        return ""
    verdict = judge(reports)
    bodies = "\n".join(reports[rank] for rank in sorted(reports))
    (folder / AUTOPSY).write_text(f"{verdict}\n\n{bodies}", "utf-8")
    return f"{verdict}; every rank's stack: {folder / AUTOPSY}"


def has_begun(folder: Path) -> bool:
    """Whether some rank reports."""
    return (folder / _PARTS).exists()


def clear_reports(folder: Path) -> None:
    """Removes what the ranks of an earlier life of the run reported."""
    shutil.rmtree(folder / _PARTS, ignore_errors=True)


def name_some(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0, 2``; of many the first ones."""
    shown = ", ".join(map(str, ranks[:_SHOWN])) + (" ..." if len(ranks) > _SHOWN else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"

"""Reads the output of OSU's osu_allreduce.

Source: OSU Micro-Benchmarks 5 to 7, ``util/osu_util.c``: a line with the benchmark's name, one with the
columns, then a line for each size: bytes, average latency, and with ``-f`` minimum, maximum and iterations.
The latency is the mean over ranks and iterations; minimum and maximum are over ranks. It does not tell how
many ranks ran.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hvdtrain.errors import InputError
from hvdtrain.measure.import_lines import (
    Found,
    Layout,
    Line,
    positive,
    refuse_without_rows,
    starts_with_number,
    whole,
)
from hvdtrain.measure.network import make_row

_TITLE = re.compile(r"#\s*OSU\s+(\S+)\s+(.+?)\s+(?:Latency\s+)?Test\b\s*(v\S+)?", re.IGNORECASE)
_DATATYPE = re.compile(r"#\s*Datatype:\s*(\w+?)\.?$")
_DTYPES = {"MPI_FLOAT": "float32", "MPI_INT": "int32", "MPI_CHAR": "int8", "MPI_DOUBLE": "float64"}


def looks_like_osu(lines: Sequence[Line]) -> bool:
    """Whether the file names a benchmark of OSU's."""
    return any(_TITLE.match(line.text) for line in lines)


def read_osu(lines: Sequence[Line], path: str, layout: Layout) -> Found:
    """Reads the table of a file.

    Args:
        lines: Its lines.
        path: Its name, for messages.
        layout: The ranks, which the file does not tell.

    Raises:
        InputError: It is damaged, of another benchmark, or nobody told the ranks.
    """
    title = next(line for line in lines if _TITLE.match(line.text))
    found = Found(_source(title, path), list(layout.hosts))
    if layout.size < 2:
        raise InputError(
            "does not tell how many ranks ran" if not layout.size else "is told to be of one rank",
            where=path,
            do="pass -np N for ranks of one host, or -H a:4,b:4",
        )
    dtype, columns = "float32", None  # before version 7 it was always float
    for line in lines[lines.index(title) :]:
        if told := _DATATYPE.match(line.text):
            dtype = _DTYPES.get(told[1], told[1].lower().removeprefix("mpi_"))
        columns = _columns(line.text) or columns
        if columns is not None and starts_with_number(line.text):
            _take(found, line, path, columns, dtype, layout.size)
    if columns is None:
        raise InputError("the line `# Size  Avg Latency(us)` is missing", where=f"{path}:{title.number}")
    refuse_without_rows(found, lines, path)
    return found


def _source(title: Line, path: str) -> str:
    told = _TITLE.match(title.text)
    assert told is not None
    if told[2].replace("-", "").lower() != "allreduce":
        raise InputError(
            f"is of {' '.join(title.text.lstrip('# ').split())}",
            where=f"{path}:{title.number}",
            legal="osu_allreduce",
        )
    return f"osu_allreduce {told[3] or ''}".strip()


def _columns(text: str) -> int | None:
    """The number of columns that a line names; None for any other line."""
    if not text.startswith("#") or not re.match(r"#\s*Size\s", text):
        return None
    return 1 + text.count("Latency(us)") + text.count("Iterations")


def _take(found: Found, line: Line, path: str, columns: int, dtype: str, size: int) -> None:
    where = f"{path}:{line.number}"
    words = line.text.split()
    if len(words) != columns:
        raise InputError(
            f"{len(words)} columns instead of {columns}: {line.text!r}",
            where=where,
            do="was the benchmark cut short, or a line broken in two?",
        )
    repetitions = whole(words[-1], "the number of iterations", where) if columns > 2 else None
    row = make_row(
        whole(words[0], "the size", where),
        positive(words[1], "the latency", where) * 1e-6,
        size,
        dtype=dtype,
        library="mpi",
        level=found.level,
        repetitions=repetitions,
    )
    found.rows.append(row)

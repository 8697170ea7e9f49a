"""Reads the output of nccl-tests' all_reduce_perf.

Source: nccl-tests ``src/common.cu`` and its forerunners back to 2.0: lines that begin with # tell ranks and
columns, then a line for each size, out of place and (with a few exceptions) in place. NCCL's own lines may
stand between them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

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

_RANK = re.compile(r"#\s*Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\b")
_ITERATIONS = re.compile(r"(?<!warmup )(?<!agg )\biters:\s*(\d+)")
_OTHER = re.compile(r"#\s*Collective test starting:\s*(\S+)")
_VERSION = re.compile(r"#\s*nccl-tests version (\S+)")
_DTYPES = {"half": "float16", "float": "float32", "double": "float64"}  # the others go by PyTorch's names
_ROUNDED = 0.0051  # printed with two decimals
_OFF = 0.02  # by which a printed bandwidth may differ otherwise: times are rounded too


@dataclass(frozen=True)
class _Columns:
    """Where a table has its values, by the line that names them.

    Attributes:
        count: Number of columns.
        count_at: The number of elements.
        dtype_at: The elements' type.
        op_at: The reduction.
        blocks: Where each of out-of-place and in-place begins: time, algbw, busbw, wrong.
    """

    count: int
    count_at: int
    dtype_at: int
    op_at: int
    blocks: tuple[int, ...]


def looks_like_nccl(lines: Sequence[Line]) -> bool:
    """Whether the file has a heading of nccl-tests' tables."""
    return any(_columns(line.text) for line in lines)


def read_nccl(lines: Sequence[Line], path: str, layout: Layout) -> Found:
    """Reads the tables of a file.

    Args:
        lines: Its lines.
        path: Its name, for messages.
        layout: What the user told of the ranks; must not contradict the file.

    Raises:
        InputError: It is damaged, of another collective, or does not tell how many ranks ran.
    """
    found = Found(_source(lines), _hosts(lines, path, layout))
    size = sum(ranks for _, ranks in found.hosts)
    columns, iterations = None, None
    for line in lines:
        if told := _ITERATIONS.search(line.text):
            iterations = int(told[1])
        columns = _columns(line.text) or columns
        _refuse_other(line, path)
        if columns is not None and starts_with_number(line.text):
            _take(found, line, path, columns, size, iterations)
    refuse_without_rows(found, lines, path)
    return found


def _source(lines: Sequence[Line]) -> str:
    versions = [told[1] for line in lines if (told := _VERSION.match(line.text))]
    return f"nccl-tests {versions[0]}" if versions else "nccl-tests"


def _hosts(lines: Sequence[Line], path: str, layout: Layout) -> list[tuple[str, int]]:
    # By rank, since an output that was appended to tells each of them again.
    places = {int(told[1]): told[2] for line in lines if (told := _RANK.match(line.text))}
    if not places and not layout.size:
        raise InputError(
            "does not tell how many ranks ran: its lines `# Rank ... on HOST` are missing",
            where=path,
            do="pass -np N for ranks of one host, or -H a:4,b:4",
        )
    if places and sorted(places) != list(range(len(places))):
        raise InputError(f"tells of {len(places)} ranks up to {max(places)}: some are missing", where=path)
    if places and layout.size not in (0, len(places)):
        fault = f"tells of {len(places)} ranks, and -np or -H of {layout.size}"
        raise InputError(fault, where=path, do="omit the option")
    size = len(places) or layout.size
    if size < 2:
        raise InputError("is of one rank, over which an allreduce moves nothing", where=path)
    return list(layout.hosts) or list(Counter(places[rank] for rank in sorted(places)).items())


def _columns(text: str) -> _Columns | None:
    """The columns that a line names; None for any other line."""
    words = text.removeprefix("#").split()
    if not text.startswith("#") or words[:3] != ["size", "count", "type"] or "algbw" not in words:
        return None
    blocks = tuple(at - 1 for at, word in enumerate(words) if word == "algbw")
    op_at = words.index("redop") if "redop" in words else -1
    return _Columns(len(words), words.index("count"), words.index("type"), op_at, blocks)


def _refuse_other(line: Line, path: str) -> None:
    told = _OTHER.match(line.text)
    if told and not told[1].startswith("all_reduce"):
        raise InputError(f"is of {told[1]}", where=f"{path}:{line.number}", legal="all_reduce_perf")


def _take(found: Found, line: Line, path: str, columns: _Columns, size: int, iterations: int | None) -> None:
    where = f"{path}:{line.number}"
    words = line.text.split()
    if len(words) != columns.count:
        raise InputError(
            f"{len(words)} columns instead of {columns.count}: {line.text!r}",
            where=where,
            do="was the benchmark cut short, or a line broken in two?",
        )
    num_bytes = whole(words[0], "the size", where)
    whole(words[columns.count_at], "the number of elements", where)
    if columns.op_at >= 0 and words[columns.op_at] == "none":
        raise InputError("has no reduction: this is no allreduce", where=where, legal="all_reduce_perf")
    block = next((at for at in reversed(columns.blocks) if words[at] != "N/A"), columns.blocks[0])
    # The rates of the block that is not taken, too: where one is wrong, the line is damaged.
    times = {
        at: positive(words[at], "the time", where) * 1e-6
        for at in columns.blocks
        if at == block or words[at] != "N/A"
    }
    for at, measured_s in times.items():
        _check_rates(num_bytes, measured_s, size, words[at + 1 : at + 3], where)
    time_s = times[block]
    if len(words) > block + 3 and words[block + 3].isdecimal() and int(words[block + 3]):
        found.notes.append(f"{where}: {words[block + 3]} wrong values")
    dtype = words[columns.dtype_at]
    row = make_row(
        num_bytes,
        time_s,
        size,
        dtype=_DTYPES.get(dtype, dtype),
        library="nccl",
        level=found.level,
        repetitions=iterations,
    )
    found.rows.append(row)


def _check_rates(num_bytes: int, time_s: float, size: int, rates: Sequence[str], where: str) -> None:
    """Refuses bandwidths that are not those of an allreduce of this size, time and number of ranks."""
    algbw = num_bytes / time_s / 1e9
    for name, text, expected in (
        ("algbw", rates[0], algbw),
        ("busbw", rates[1], algbw * 2 * (size - 1) / size),
    ):
        try:
            told = float(text)
        except ValueError:
            told = -1.0
        if not abs(told - expected) <= _ROUNDED + _OFF * expected:
            raise InputError(
                f"{name} is {text}, but of {num_bytes} B over {size} ranks in {time_s * 1e6:g} us it is "
                f"{expected:.2f} GB/s",
                where=where,
                do="the line is damaged, the number of ranks another one, or it is no allreduce",
            )

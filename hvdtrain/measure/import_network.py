"""Reads what other benchmarks printed into a network document. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hvdtrain.errors import InputError
from hvdtrain.measure.import_lines import Layout, numbered_lines
from hvdtrain.measure.import_nccl import looks_like_nccl, read_nccl
from hvdtrain.measure.import_osu import looks_like_osu, read_osu
from hvdtrain.measure.network import network_document

_LEGAL = "the output of nccl-tests' all_reduce_perf or of OSU's osu_allreduce, with its # lines"
_LARGEST = 64 << 20  # a log of days, with NCCL's own lines between the rows


def import_network(path: Path, layout: Sequence[tuple[str, int]] = ()) -> dict[str, Any]:
    """The network document of a file.

    Args:
        path: The file; what it holds is found by its # lines.
        layout: Name and number of ranks of each host, where the file does not tell them.

    Raises:
        InputError: It cannot be read, is of another kind, or is damaged; names file and line.
    """
    lines = numbered_lines(_read(path))
    if looks_like_nccl(lines):
        found = read_nccl(lines, str(path), Layout(tuple(layout)))
    elif looks_like_osu(lines):
        found = read_osu(lines, str(path), Layout(tuple(layout)))
    else:
        raise InputError("is no output that can be read", where=str(path), legal=_LEGAL)
    return network_document(found.rows, found.hosts, found.notes, source=found.source)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if len(data) > _LARGEST:
        raise InputError(f"is larger than {_LARGEST >> 20} MiB", where=str(path), legal=_LEGAL)
    text = data.decode("utf-8", errors="replace")
    if not text.strip():
        raise InputError("is empty", where=str(path), legal=_LEGAL)
    return text

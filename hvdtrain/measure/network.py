"""The network document: rows of measured allreduces, and the constants fitted to them. Imports no torch.

Bandwidths as nccl-tests defines them (``doc/PERFORMANCE.md`` there): algbw = S/t, and for an allreduce over n
ranks busbw = algbw 2(n-1)/n; GB is 1e9 B.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hvdtrain.errors import InputError
from hvdtrain.scaling.collectives import WireFit, bus_bandwidth, fit_wire

_GB = 1e9


@dataclass(frozen=True)
class Row:
    """One size's measurement.

    Attributes:
        bytes: Of the buffer.
        dtype: Its elements' type, by PyTorch's name.
        library: Whose allreduce.
        time_s: Median over the repetitions, each that of its slowest rank.
        min_s: The least; None where an imported file does not tell it.
        p95_s: 95 % of the repetitions were at most this; None as well.
        algbw_gb_s: bytes / time_s / 1e9.
        busbw_gb_s: algbw 2(n-1)/n.
        repetitions: How many; None where an imported file does not tell it.
        ranks: n.
        level: ``inside`` one host, or ``between`` several.
    """

    bytes: int
    dtype: str
    library: str
    time_s: float
    min_s: float | None
    p95_s: float | None
    algbw_gb_s: float
    busbw_gb_s: float
    repetitions: int | None
    ranks: int
    level: str


def make_row(
    num_bytes: int, time_s: float, ranks: int, *, dtype: str, library: str, level: str, **spread: Any
) -> Row:
    """A row with its bandwidths.

    Args:
        num_bytes: Of the buffer.
        time_s: Of one allreduce.
        ranks: That took part.
        dtype: Type of an element.
        library: Whose allreduce.
        level: ``inside`` or ``between``.
        spread: ``min_s``, ``p95_s`` and ``repetitions``, where they are known.
    """
    return Row(
        bytes=num_bytes,
        dtype=dtype,
        library=library,
        time_s=time_s,
        min_s=spread.get("min_s"),
        p95_s=spread.get("p95_s"),
        algbw_gb_s=num_bytes / time_s / _GB,
        busbw_gb_s=bus_bandwidth(num_bytes, time_s, ranks) / _GB,
        repetitions=spread.get("repetitions"),
        ranks=ranks,
        level=level,
    )


def network_document(
    rows: Sequence[Row], hosts: Sequence[tuple[str, int]], notes: Sequence[str] = (), **facts: Any
) -> dict[str, Any]:
    """The document that ``hvdtrain advise --network`` reads, schema 1.

    Args:
        rows: At least one.
        hosts: Name and number of ranks of each host.
        notes: What was left out and why.
        facts: Further keys, such as ``device``.
    """
    libraries = list(dict.fromkeys(row.library for row in rows))
    return {
        "schema": 1,
        "kind": "allreduce",
        "size": sum(ranks for _, ranks in hosts),
        "hosts": [{"name": name, "ranks": ranks} for name, ranks in hosts],
        "library": libraries[0],
        **facts,
        "rows": [asdict(row) for row in rows],
        "fits": list(_fits(rows)),
        "notes": list(notes),
    }


def _fits(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """A fit for each library and level, of float32 where it was measured: its sums cost the least."""
    for library, level in dict.fromkeys((row.library, row.level) for row in rows):
        own = [row for row in rows if (row.library, row.level) == (library, level)]
        dtypes = dict.fromkeys(row.dtype for row in own)
        dtype = "float32" if "float32" in dtypes else next(iter(dtypes))
        fit = _fit([row for row in own if row.dtype == dtype])
        if fit is not None:
            yield {
                "level": level,
                "library": library,
                "ranks": own[0].ranks,
                "alpha_s": fit.wire.alpha_s,
                "beta_s_per_byte": fit.wire.beta_s,
                "residual": fit.residual,
                "algorithm": "ring",
                "dtype": dtype,
            }


def _fit(rows: Sequence[Row]) -> WireFit | None:
    """None for a single size, of which two constants cannot be told."""
    try:
        return fit_wire([(row.bytes, row.time_s) for row in rows], rows[0].ranks)
    except InputError:
        return None

"""A network as lines for a terminal. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hvdtrain.measure.allreduce_request import show_size

_LINE = "{:<8} {:>5}  {:<8} {:>12} {:>10} {:>12} {:>9} {:>9} {:>6}"


def header(hosts: Sequence[Sequence[Any]], size: int) -> list[str]:
    """What stands above the rows.

    Args:
        hosts: Name and number of ranks of each host.
        size: Number of ranks.
    """
    names = ", ".join(f"{name} ({ranks})" for name, ranks in hosts[:8])
    more = f" and {len(hosts) - 8} more" if len(hosts) > 8 else ""
    where = "1 host" if len(hosts) == 1 else f"{len(hosts)} hosts"
    return [
        f"allreduce in place, {size} ranks on {where}: {names}{more}; GB = 1e9 B",
        _LINE.format("library", "ranks", "dtype", "bytes", "", "time (us)", "algbw", "busbw", "reps"),
    ]


def row_line(row: Mapping[str, Any]) -> str:
    """One row; bandwidths in GB/s."""
    reps = "-" if row["repetitions"] is None else row["repetitions"]
    return _LINE.format(
        row["library"],
        row["ranks"],
        row["dtype"],
        row["bytes"],
        show_size(row["bytes"]),
        f"{row['time_s'] * 1e6:.2f}",
        f"{row['algbw_gb_s']:.3f}",
        f"{row['busbw_gb_s']:.3f}",
        reps,
    )


def fit_line(fit: Mapping[str, Any]) -> str:
    """A fit in words."""
    where = "inside a host" if fit["level"] == "inside" else "between hosts"
    beta = fit["beta_s_per_byte"]
    speed = f"{1e-9 / beta:.3g} GB/s" if beta > 0 else "no limit seen"
    return (
        f"{fit['library']} {where}, {fit['ranks']} ranks as a ring: alpha {fit['alpha_s'] * 1e6:.4g} us, "
        f"beta {beta * 1e9:.4g} ns/B ({speed}), residual {100 * fit['residual']:.0f} %"
    )

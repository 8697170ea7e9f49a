"""A profile's steps as a trace that chrome://tracing and Perfetto show.

Format: the JSON object form of the Trace Event Format, complete events (``ph`` X), times in microseconds. A
rank is a process of the trace, its host the process's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hvdtrain.measure.profile_times import Table, waits

Spans = Sequence[Sequence[tuple[str, float, float]]]  # by step: part, begin and end in seconds


def trace_document(spans: Sequence[Spans], table: Table, hosts: Sequence[str]) -> dict[str, Any]:
    """The trace.

    Args:
        spans: By rank what ``StepClock.spans`` gave: all count from one moment.
        table: The same steps.
        hosts: By rank.
    """
    waited = waits(table)
    events: list[dict[str, Any]] = []
    for rank, (host, steps) in enumerate(zip(hosts, spans, strict=True)):
        name = {"name": f"rank {rank} on {host}"}
        events.append({"name": "process_name", "ph": "M", "pid": rank, "tid": 0, "args": name})
        for number, step in enumerate(steps, 1):
            left_s = float(waited[number - 1, rank]) if number <= len(waited) else 0.0
            for part, begin, end in step:
                split = min(end, begin + left_s) if part == "reduction" else begin
                left_s -= split - begin
                events += _events(rank, number, "wait", begin, split)
                told = "exposed" if part == "reduction" else part
                events += _events(rank, number, told, split, end)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _events(rank: int, step: int, name: str, begin_s: float, end_s: float) -> list[dict[str, Any]]:
    """An event; none where nothing took any time."""
    if end_s <= begin_s:
        return []
    times = {"ts": round(begin_s * 1e6, 3), "dur": round((end_s - begin_s) * 1e6, 3)}
    return [{"name": name, "cat": "step", "ph": "X", "pid": rank, "tid": 0, **times, "args": {"step": step}}]

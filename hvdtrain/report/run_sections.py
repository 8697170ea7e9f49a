"""What a report tells of a run: its state, the numbers on top, and the job's facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hvdtrain.report.content import Section, Tile, facts
from hvdtrain.report.numbers import counted, percent, short, time_text
from hvdtrain.report.run_record import RunRecord, is_number

_GOOD, _OPEN = {"done"}, {"starting", "running", "preempted"}


def run_state(run: RunRecord) -> tuple[str, Literal["good", "bad", "open"]] | None:
    """The state's word and its mood."""
    state = run.status.get("state")
    if not isinstance(state, str):
        return None
    step = run.status.get("step")
    at = f" at step {step:,}" if state in _OPEN and is_number(step) and step else ""
    return state + at, "good" if state in _GOOD else "open" if state in _OPEN else "bad"


def run_lead(run: RunRecord) -> str:
    """Why a run ended that did not come to its end."""
    for key in ("error", "reason"):
        if isinstance(run.status.get(key), str) and run.status[key]:
            return f"{run.status[key]}"
    return ""


def run_tiles(run: RunRecord) -> tuple[Tile, ...]:
    """The numbers that people ask for first: the last, and the best beside it."""
    tiles = []
    if scores := run.series("validation_accuracy"):
        step, best = max(scores, key=lambda one: one[1])
        told = f"best {percent(best, 2)} at step {step:,.0f}"
        tiles.append(Tile("Validation accuracy", percent(scores[-1][1], 2), told))
    if losses := run.series("validation_loss"):
        step, least = min(losses, key=lambda one: one[1])
        tiles.append(
            Tile("Validation loss", short(losses[-1][1]), f"least {short(least)} at step {step:,.0f}")
        )
    elif losses := run.series("loss"):
        tiles.append(Tile("Training loss", short(losses[-1][1]), f"at step {losses[-1][0]:,.0f}"))
    if rates := run.series("samples_per_s"):
        told = f"on {counted(_size(run), 'rank')}" if _size(run) else ""
        tiles.append(Tile("Samples a second", short(rates[-1][1]), told))
    if run.lines:
        told = "" if run.duration_s is None else f"in {time_text(run.duration_s)}"
        tiles.append(Tile("Steps", f"{run.lines[-1].step:,}", told))
    return tuple(tiles)


def _size(run: RunRecord) -> int:
    """Ranks as planned; 0 where no plan tells."""
    size: Any = run.plan.get("size")
    return int(size) if is_number(size) and size >= 1 else 0


def run_facts(run: RunRecord) -> Section | None:
    """What was trained, how, and on what."""
    job, result = run.job, _mapping(run.status.get("result"))
    optimizer, schedule, batch = (_mapping(job.get(key)) for key in ("optimizer", "schedule", "batch"))
    per_rank, whole = batch.get("per_rank"), batch.get("global")
    found = facts(
        ("job", "Job", *_said(job.get("name"))),
        ("model", "Model", *_said(_mapping(job.get("model")).get("name"))),
        ("data", "Data", *_said(_mapping(job.get("data")).get("source"))),
        ("global_batch", "Global batch", *_said(whole)),
        ("batch_per_rank", "Batch of a rank", *_said(per_rank)),
        ("accumulate", "Micro-batches a step", *_said(batch.get("accumulate"))),
        ("epochs", "Epochs", *_said(job.get("epochs"))),
        ("optimizer", "Optimizer", *_said(optimizer.get("name"))),
        ("lr", "Learning rate", *_said(optimizer.get("lr"))),
        ("schedule", "Schedule", *_said(schedule.get("name"))),
        ("precision", "Precision", *_said(job.get("precision"))),
        ("seed", "Seed", *_said(job.get("seed"))),
        ("backend", "Engine", *_said(result.get("backend", job.get("backend")))),
        ("launcher", "Launcher", *_said(run.plan.get("launcher"))),
        ("size", "Ranks", *_said(_size(run) or result.get("size"))),
        *_hosts(run),
        ("skipped_steps", "Skipped steps", *_said(result.get("skipped_steps"))),
    )
    return Section("Job and hardware", facts=found, source=run.job_text) if found or run.job_text else None


def _hosts(run: RunRecord) -> list[tuple[str, str, Any, str]]:
    ranks = run.plan.get("ranks")
    if not isinstance(ranks, list):
        return []
    names = [str(one["host"]) for one in ranks if isinstance(one, Mapping) and "host" in one]
    counts = {name: names.count(name) for name in dict.fromkeys(names)} if len(names) <= 10_000 else {}
    told = [f"{name} ({counted(count, 'rank')})" for name, count in counts.items()]
    shown = ", ".join(told[:8]) + (f" and {len(told) - 8} more" if len(told) > 8 else "")
    return [("hosts", "Hosts", shown or None, shown)]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _said(value: Any) -> tuple[Any, str]:
    """A fact's value and its text; nothing for what is no single value."""
    if isinstance(value, bool):
        return value, "yes" if value else "no"
    if isinstance(value, str):
        return (value, value) if value else (None, "")
    return (
        (value, f"{value:,}" if isinstance(value, int) else f"{value:g}") if is_number(value) else (None, "")
    )

"""Reads the document of ``hvdtrain advise --json`` strictly, whichever of its two sources it has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtrain.scaling.fields import Fields, read_document

_MAKER = "hvdtrain advise --json"


@dataclass(frozen=True)
class Band:
    """A figure and its band; without one, low and high are the figure."""

    value: float
    low: float
    high: float

    @property
    def is_sure(self) -> bool:
        """Whether there is no band."""
        return self.low == self.high


@dataclass(frozen=True)
class Row:
    """A predicted number of GPUs. ``throughput`` in samples a second; time in seconds and cost to finish.

    Of advice from measured throughputs the cost is that of the samples that ``advise`` was told, and there is
    no time.
    """

    gpus: int
    throughput: float
    efficiency: Band
    step_s: Band
    time_s: Band | None
    cost: Band | None
    useful: float | None
    global_batch: float | None


@dataclass(frozen=True)
class MeasuredPoint:
    """A measured number of GPUs, its samples a second, and its efficiency."""

    gpus: int
    throughput: float
    efficiency: float


@dataclass(frozen=True)
class Change:
    """A change of the what-if table: samples a second with it, and its gain as a fraction."""

    change: str
    throughput: float
    gain: float


@dataclass(frozen=True)
class Waterfall:
    """Where efficiency goes at a number of GPUs: (cause, share) that sum with what is left to 1."""

    gpus: int
    left: float
    bars: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class AdviceRecord:
    """The document. ``relative_to`` is the number of GPUs whose efficiency is 1."""

    job: str
    source: str
    device: str
    rows: tuple[Row, ...]
    measured: tuple[MeasuredPoint, ...]
    relative_to: int
    recommended: int
    worth_it: bool
    bottleneck: str
    verdict: str
    waterfall: Waterfall | None
    changes: tuple[Change, ...]
    gates: tuple[tuple[str, bool], ...]
    notes: tuple[str, ...]


def read_advice(path: Path) -> AdviceRecord:
    """Reads and checks a file of advice.

    Raises:
        InputError: The file is empty, no advice, of another schema, or a value is missing or impossible;
            names file and key.
    """
    return parse_advice(read_document(path, "advice", _MAKER))


def parse_advice(fields: Fields) -> AdviceRecord:
    """Checks a document; ``read_advice`` says which errors it raises."""
    if fields.values.get("kind") != "advice":
        raise fields.wrong("kind", f"is {fields.values.get('kind')!r}", "advice", f"write one with {_MAKER}")
    rows = tuple(_row(one) for one in fields.objects("predictions"))
    if not rows:
        raise fields.wrong("predictions", "is empty")
    profile = fields.maybe_object("profile")
    waterfall = fields.maybe_object("waterfall")
    return AdviceRecord(
        job=fields.text("job") if fields.values.get("job") is not None else "",
        source=fields.text("source"),
        device=profile.text("device_name") if profile else "",
        rows=tuple(sorted(rows, key=lambda row: row.gpus)),
        measured=_measured(fields, profile, rows),
        relative_to=fields.maybe_count("relative_to_gpus", 1) or 1,
        recommended=fields.count("recommended_gpus", 1),
        worth_it=_truth(fields, "worth_it"),
        bottleneck=fields.text("bottleneck"),
        verdict=fields.text("verdict"),
        waterfall=_waterfall(waterfall) if waterfall else None,
        changes=tuple(_change(one) for one in fields.objects("what_if")),
        gates=tuple((one.text("sentence"), _truth(one, "holds")) for one in _maybe(fields, "gates")),
        notes=_texts(fields, "notes"),
    )


def _row(fields: Fields) -> Row:
    return Row(
        gpus=fields.count("gpus", 1),
        throughput=fields.number("throughput", 1e-12),
        efficiency=_band(fields, "efficiency"),
        step_s=_band(fields, "step_time", "_s", low=1e-12),
        time_s=_band(fields, "time", "_s", low=1e-12) if _has(fields, "time_s") else None,
        cost=_band(fields, "cost") if _has(fields, "cost") else None,
        useful=fields.maybe_number("effective_efficiency"),
        global_batch=fields.maybe_number("global_batch"),
    )


def _band(fields: Fields, name: str, unit: str = "", low: float = 0.0) -> Band:
    value = fields.number(f"{name}{unit}", low)
    ends = [fields.maybe_number(f"{name}_{end}{unit}", low) for end in ("low", "high")]
    lower, upper = (value if end is None else end for end in ends)
    if lower > upper:
        raise fields.wrong(f"{name}_low{unit}", f"is {lower:g}, above {name}_high{unit}, {upper:g}")
    return Band(value, lower, upper)


def _measured(fields: Fields, profile: Fields | None, rows: tuple[Row, ...]) -> tuple[MeasuredPoint, ...]:
    """What was measured: rows of their own, or the profile against one predicted GPU."""
    if profile is None:
        return tuple(
            MeasuredPoint(one.count("gpus", 1), one.number("throughput", 1e-12), one.number("efficiency"))
            for one in _maybe(fields, "measured")
        )
    size, rate = profile.count("size", 1), profile.number("samples_per_s", 1e-12)
    alone = next((row for row in rows if row.gpus == 1), None)
    return (MeasuredPoint(size, rate, rate / size / alone.throughput),) if alone else ()


def _waterfall(fields: Fields) -> Waterfall:
    bars = tuple((one.text("cause"), one.number("share", -1e-6)) for one in fields.objects("bars"))
    left = fields.number("efficiency", -1e-6)
    if abs(sum(share for _, share in bars) + left - 1) > 1e-3:
        raise fields.wrong("bars", "do not sum with what is left to 1")
    return Waterfall(fields.count("gpus", 1), max(0.0, left), tuple((name, max(0.0, s)) for name, s in bars))


def _change(fields: Fields) -> Change:
    key = "samples_per_s" if _has(fields, "samples_per_s") else "throughput"
    return Change(fields.text("change"), fields.number(key), fields.number("gain", -1.0))


def _has(fields: Fields, key: str) -> bool:
    return fields.values.get(key) is not None


def _maybe(fields: Fields, key: str) -> list[Fields]:
    return list(fields.objects(key)) if _has(fields, key) else []


def _truth(fields: Fields, key: str) -> bool:
    value: Any = fields.values.get(key)
    if not isinstance(value, bool):
        raise fields.wrong(key, "must be true or false")
    return value


def _texts(fields: Fields, key: str) -> tuple[str, ...]:
    values = fields.values.get(key) or []
    if not isinstance(values, list):
        raise fields.wrong(key, "must be a list")
    return tuple(str(value) for value in values)

"""What a report tells of advice: the recommendation, its figures, and what it rests on."""

from __future__ import annotations

from hvdtrain.report.advice_figures import cause_figure, change_figure, efficiency_figure, throughput_figure
from hvdtrain.report.advice_record import AdviceRecord
from hvdtrain.report.content import Section, Tile, facts
from hvdtrain.report.cost_figure import cost_figure
from hvdtrain.report.numbers import counted, percent, short, span_text, time_text
from hvdtrain.report.step_parts import CAUSES

_SOURCES = {"measured": "throughputs that were measured", "profile": "a profile"}


def advice_sections(advice: AdviceRecord) -> tuple[Section, ...]:
    """Is it worth it, why not, what would help."""
    scaling = [efficiency_figure(advice)]
    if advice.waterfall:
        scaling.append(cause_figure(advice.waterfall))
    scaling += [throughput_figure(advice), cost_figure(advice)]
    sections = [Section("Scaling", tuple(scaling))]
    if advice.changes:
        sections.append(Section("What would help", (change_figure(advice),)))
    return tuple(sections)


def advice_tiles(advice: AdviceRecord) -> tuple[Tile, ...]:
    """The recommendation and what it brings."""
    row = next((row for row in advice.rows if row.gpus == advice.recommended), None)
    point = next((point for point in advice.measured if point.gpus == advice.recommended), None)
    told = "worth it" if advice.worth_it else "more are not worth it"
    tiles = [Tile("Recommended", counted(advice.recommended, "GPU"), told)]
    if row:
        band = row.efficiency
        detail = "" if band.is_sure else span_text(band.low, band.high, percent)
        tiles.append(Tile("Efficiency there", percent(band.value), detail))
        tiles.append(Tile("Samples a second", short(row.throughput), f"{time_text(row.step_s.value)} a step"))
    elif point:
        tiles.append(Tile("Efficiency there", percent(point.efficiency), "measured"))
        tiles.append(Tile("Samples a second", short(point.throughput), "measured"))
    limit, _ = CAUSES.get(advice.bottleneck, (advice.bottleneck, ""))
    return (*tiles, Tile("What limits", limit, f"at {counted(advice.rows[-1].gpus, 'GPU')}"))


def advice_facts(advice: AdviceRecord) -> Section:
    """What the advice rests on."""
    told = [f"{short(one.throughput)} samples/s on {counted(one.gpus, 'GPU')}" for one in advice.measured]
    measured = ", ".join(told)
    source = _SOURCES.get(advice.source, advice.source)
    base = counted(advice.relative_to, "GPU")
    return Section(
        "What it rests on",
        facts=facts(
            ("job", "Job", advice.job or None, advice.job),
            ("device", "Device", advice.device or None, advice.device),
            ("source", "From", advice.source, source),
            ("measured", "Measured", measured or None, measured),
            ("relative_to_gpus", "Efficiency is relative to", advice.relative_to, base),
        ),
    )

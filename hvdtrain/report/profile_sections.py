"""What a report tells of a profile: where a step's time goes, what is reduced when, memory, hardware."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any, Literal

from hvdtrain.report.bars import Bar, Stack, Words, draw_bars, draw_stacks, round_ticks
from hvdtrain.report.content import Cell, Column, Fact, Figure, Key, Section, Tile, facts, table_of
from hvdtrain.report.numbers import bytes_text, counted, percent, short, span_text, time_text
from hvdtrain.report.plot import Axis, Line, Plot
from hvdtrain.report.step_parts import PARTS
from hvdtrain.scaling.profile import Profile, RankTimes

_MOST_RANKS = 12
_MOST_HOSTS = 8
_MANY = 5  # ranks whose picture is as tall as three others


def profile_sections(profile: Profile) -> tuple[Section, ...]:
    """The step, then memory and gradients, then facts."""
    figures = [_shares(profile), _per_rank(profile)]
    if len(profile.gradients.ready) > 1:
        figures.append(_readiness(profile))
    if figure := _memory(profile):
        figures.append(figure)
    return (Section("Where the step's time goes", tuple(figures)),)


def profile_tiles(profile: Profile) -> tuple[Tile, ...]:
    """Speed, step, the part that waits, and the rank that is slowest."""
    shares = _mean_shares(profile)
    waiting = shares["load_s"] + shares["exposed_s"] + shares["wait_s"]
    spread = span_text(profile.step_s.min, profile.step_s.max, time_text)
    told = f"{spread} in {counted(profile.steps, 'step')}"
    return (
        Tile("Samples a second", short(profile.samples_per_s), f"on {counted(profile.size, 'rank')}"),
        Tile("Step, median", time_text(profile.step_s.median), told),
        Tile("Share of the step that waits", percent(waiting), "for data, for the network, for other ranks"),
    )


def profile_facts(profile: Profile) -> Section:
    """What was profiled, and on what."""
    return Section("Job and hardware", facts=(*_of_the_job(profile), *_of_the_machine(profile)))


def _of_the_job(profile: Profile) -> tuple[Fact, ...]:
    gradients, loader, noise = profile.gradients, profile.loader, profile.noise_scale
    reduced = f"{bytes_text(gradients.bytes)} in {counted(gradients.num_tensors, 'tensor')}"
    capacity = loader.capacity_samples_per_s
    return facts(
        ("job", "Job", profile.job, profile.job),
        ("date", "Profiled", profile.date, profile.date),
        ("precision", "Precision", profile.precision, profile.precision),
        ("compression", "Compression", profile.compression, profile.compression),
        ("global_batch", "Global batch", profile.global_batch, f"{profile.global_batch:,}"),
        ("accumulate", "Micro-batches a step", profile.accumulate, f"{profile.accumulate:,}"),
        ("num_parameters", "Parameters", gradients.num_parameters, f"{gradients.num_parameters:,}"),
        ("gradient_bytes", "Reduced each step", gradients.bytes, reduced),
        ("num_workers", "Loader workers a rank", loader.num_workers, f"{loader.num_workers:,}"),
        ("loader_samples_per_s", "Loader's capacity a rank", capacity, f"{short(capacity or 0)} samples/s"),
        ("noise_scale", "Gradient noise scale", *_maybe(noise and noise.simple, short, " samples")),
    )


def _of_the_machine(profile: Profile) -> tuple[Fact, ...]:
    gpu, software = profile.gpu, f"torch {profile.torch}, hvdtrain {profile.hvdtrain}"
    hosts = [f"{host.name} ({counted(host.ranks, 'rank')})" for host in profile.hosts]
    shown = ", ".join(hosts[:_MOST_HOSTS])
    if len(hosts) > _MOST_HOSTS:
        shown += f" and {len(hosts) - _MOST_HOSTS} more"
    return facts(
        ("size", "Ranks", profile.size, f"{profile.size:,}"),
        ("hosts", "Hosts", shown, shown),
        ("backend", "Engine", profile.backend, profile.backend),
        ("device", "Device", profile.device_name, f"{profile.device_name} ({profile.device})"),
        ("device_memory_bytes", "Device memory", *_maybe(profile.device_memory_bytes, bytes_text)),
        (
            "cores_per_rank",
            "Cores a rank",
            profile.loader.cores_per_rank,
            f"{profile.loader.cores_per_rank:g}",
        ),
        ("gpu_utilisation", "GPU utilisation", *_maybe(gpu and gpu.utilisation, percent)),
        ("gpu_power_w", "GPU power", *_maybe(gpu and gpu.power_w, short, " W")),
        ("energy_j_per_step", "Energy a step", *_maybe(gpu and gpu.energy_j_per_step, short, " J")),
        ("software", "Software", software, software),
    )


def _maybe(value: Any, write: Callable[[float], str], unit: str = "") -> tuple[float | None, str]:
    """A fact's value and text; None and nothing where it was not measured."""
    return (None, "") if value is None else (value, write(value) + unit)


def _mean_shares(profile: Profile) -> dict[str, float]:
    """Means over the ranks of each part's share of the step; they sum to 1."""
    return {key: fmean(getattr(rank, key) / rank.step_s for rank in profile.ranks) for key, _, _ in PARTS}


def _shares(profile: Profile) -> Figure:
    shares = _mean_shares(profile)
    shown = [part for part in PARTS if shares[part[0]] > 0]
    largest = max(shown, key=lambda part: shares[part[0]])
    title = "Shares of the step"
    summary = (
        f"Means over {counted(profile.size, 'rank')}: {largest[1]} takes most, {percent(shares[largest[0]])}."
    )
    bars = [Bar(name, shares[key], percent(shares[key]), look) for key, name, look in shown]
    columns = [Column("part", "part", True), Column("time_s", "time a step"), Column("share", "share")]
    rows = [
        [
            Cell(name, name),
            Cell(mean := fmean(getattr(rank, key) for rank in profile.ranks), time_text(mean)),
            Cell(shares[key], percent(shares[key])),
        ]
        for key, name, _ in PARTS
    ]
    svg = draw_bars(Words("shares", title, summary), bars)
    return Figure("shares", title, summary, svg, table_of(columns, rows))


def _per_rank(profile: Profile) -> Figure:
    """A stack per rank; of many ranks the slowest, and the mean of the rest."""
    ranks = sorted(profile.ranks, key=lambda rank: rank.rank)
    slowest = max(ranks, key=lambda rank: rank.busy_s)
    most_busy = sorted(ranks, key=lambda rank: -rank.busy_s)[:_MOST_RANKS]
    shown = [rank for rank in ranks if rank in most_busy] if len(ranks) > _MOST_RANKS else ranks
    stacks = [_stack(f"rank {rank.rank} on {rank.host}", [rank]) for rank in shown]
    if rest := [rank for rank in ranks if rank not in shown]:
        stacks.append(_stack(f"{counted(len(rest), 'other rank')}, mean", rest))
    high = max(sum(value for value, _, _ in stack.parts) for stack in stacks)
    ticks = [(value, time_text(value)) for value in round_ticks(high)]
    title = "Time of a step, per rank"
    summary = "One rank."
    if profile.size > 1:
        mean = time_text(fmean(rank.busy_s for rank in ranks))
        summary = (
            f"Rank {slowest.rank} on {slowest.host} has the most own work, {time_text(slowest.busy_s)} a "
            f"step; the mean is {mean}."
        )
    columns = [Column("rank", "rank"), Column("host", "host", True)]
    columns += [Column(key, name) for key, name, _ in PARTS] + [Column("step_s", "step")]
    rows = [_rank_row(rank) for rank in ranks]
    svg = draw_stacks(Words("ranks", title, summary), stacks, high, ticks)
    legend = tuple(
        Key(name, look, "area") for key, name, look in PARTS if any(getattr(rank, key) > 0 for rank in ranks)
    )
    marked = ranks.index(slowest) if profile.size > 1 else None
    room: Literal["", "tall"] = "tall" if len(stacks) >= _MANY else ""
    return Figure("ranks", title, summary, svg, table_of(columns, rows, marked), legend, room=room)


def _stack(name: str, ranks: list[RankTimes]) -> Stack:
    means = [(fmean(getattr(rank, key) for rank in ranks), look, part) for key, part, look in PARTS]
    parts = [(value, look, f"{name}: {part} {time_text(value)}") for value, look, part in means]
    return Stack(name, parts, time_text(fmean(rank.step_s for rank in ranks)))


def _rank_row(rank: RankTimes) -> list[Cell]:
    times = [Cell(value := getattr(rank, key), time_text(value)) for key, _, _ in PARTS]
    return [
        Cell(rank.rank, str(rank.rank)),
        Cell(rank.host, rank.host),
        *times,
        Cell(rank.step_s, time_text(rank.step_s)),
    ]


def _readiness(profile: Profile) -> Figure:
    """How many bytes may be on their way while backward still computes."""
    points, reached, total = [(0.0, 0.0)], [], 0
    for one in profile.gradients.ready:
        points.append((one.ready_s, float(total)))  # a gradient is ready at once, not bit by bit
        total += one.bytes
        points.append((one.ready_s, float(total)))
        reached.append((one.ready_s, total))
    end = points[-1][0]
    half = next(ready_s for ready_s, size in reached if size >= total / 2)
    title = "Gradients ready during backward"
    summary = (
        f"Half of {bytes_text(total)} is ready {time_text(half)} after backward begins, all after "
        f"{time_text(end)}: what is ready early is reduced behind the rest of backward."
    )
    plot = Plot(
        "gradients",
        title,
        summary,
        Axis("since backward began", time_text),
        Axis("ready to reduce", bytes_text, from_zero=True),
        [Line("ready", "one", points)],
    )
    columns = [Column("ready_s", "after"), Column("bytes", "ready")]
    rows = [[Cell(x, time_text(x)), Cell(y, bytes_text(y))] for x, y in reached]
    return Figure("gradients", title, summary, plot.draw(), table_of(columns, rows))


def _memory(profile: Profile) -> Figure | None:
    memory, device = profile.memory, profile.device_memory_bytes
    parts = [
        ("parameters", memory.parameters_bytes, "forward"),
        ("gradients", memory.gradients_bytes, "backward"),
        ("optimizer state", memory.optimizer_bytes, "optimizer"),
        ("buffers", memory.buffers_bytes, "other"),
    ]
    total = sum(size for _, size, _ in parts)
    if not total:
        return None
    rows = [[Cell(name, name), Cell(size, bytes_text(size))] for name, size, _ in parts]
    bars = [Bar(name, size, bytes_text(size), look) for name, size, look in parts if size]
    if memory.peak_bytes:
        bars.append(Bar("peak, with activations", memory.peak_bytes, bytes_text(memory.peak_bytes), "wait"))
        rows.append(
            [Cell("peak", "peak, with activations"), Cell(memory.peak_bytes, bytes_text(memory.peak_bytes))]
        )
    title, of = "Memory of a replica", f" of {bytes_text(device)}" if device else ""
    peak = f", {bytes_text(memory.peak_bytes)}{of} at the peak" if memory.peak_bytes else ""
    summary = f"Its state takes {bytes_text(total)}{peak}."
    columns = [Column("part", "part", True), Column("bytes", "size")]
    svg = draw_bars(Words("memory", title, summary), bars)
    return Figure("memory", title, summary, svg, table_of(columns, rows))

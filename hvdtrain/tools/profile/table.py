"""A profile as a table for the terminal. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from hvdtrain.measure.profile_slowest import slowest
from hvdtrain.scaling.profile import Profile, RankTimes

_PARTS = ("load", "forward", "backward", "exposed", "optimizer", "wait", "other")
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_SLOW = 0.10  # a rank that is less slow than this is nothing to mend


def table_lines(profile: Profile) -> list[str]:
    """The profile in lines: what was measured, each rank's step, who is slowest, what moved, what is held."""
    lines = [
        f"{profile.job}: {profile.size} x {profile.backend} on {profile.device} ({profile.device_name}), "
        f"global batch {profile.global_batch}, {profile.steps} steps",
        _step_line(profile),
        "",
        *_rank_lines(profile.ranks),
        "",
        _slowest_line(profile),
        _loader_line(profile),
        _gradient_line(profile),
        _memory_line(profile),
    ]
    if gpu := profile.gpu:
        lines.append(
            f"GPU        {100 * gpu.utilisation:.0f} % used, {gpu.power_w:.0f} W, "
            f"{gpu.energy_j_per_step:.3g} J a step on each"
        )
    if noise := profile.noise_scale:
        lines.append(
            f"noise      scale of the gradient about {noise.simple:.3g} samples, from {noise.num_steps} steps"
        )
    return lines


def _step_line(profile: Profile) -> str:
    step = profile.step_s
    times = [
        f"{_ms(value)} {name}"
        for name, value in (("mean", step.mean), ("median", step.median), ("95 %", step.p95))
    ]
    return f"step       {', '.join(times)}; {profile.samples_per_s:,.0f} samples/s"


def _rank_lines(ranks: Sequence[RankTimes]) -> list[str]:
    width = max(4, *(len(one.host) for one in ranks))
    head = "".join(f"{name:>11}" for name in (*_PARTS, "step"))
    lines = [f"rank  {'host':<{width}}{head}   (ms)"]
    for one in ranks:
        times = "".join(f"{1e3 * _seconds(one, name):>11.3f}" for name in (*_PARTS, "step"))
        lines.append(f"{one.rank:>4}  {one.host:<{width}}{times}")
    whole = fmean(one.step_s for one in ranks)
    shares = [fmean(_seconds(one, name) for one in ranks) / whole for name in _PARTS]
    told = "".join(f"{100 * share:>10.1f}%" for share in (*shares, 1.0))
    return [*lines, f"share {'':<{width}}{told}"]


def _slowest_line(profile: Profile) -> str:
    found = slowest(profile.ranks)
    where = f"slowest    rank {found.rank} on {found.host}"
    if profile.size == 1:
        return f"{where}, the only one"
    told = f"{where}: its own work takes {100 * found.excess:.0f} % longer than the median of the others"
    return f"{told}, most of it in {found.part}" if found.excess > _SLOW else told


def _loader_line(profile: Profile) -> str:
    loader = profile.loader
    told = f"loader     {loader.num_workers} workers, {loader.cores_per_rank:g} cores a rank"
    if loader.capacity_samples_per_s is None:
        return told
    used = profile.samples_per_s / profile.size
    return f"{told}; alone it gives {loader.capacity_samples_per_s:,.0f} samples/s, a rank uses {used:,.0f}"


def _gradient_line(profile: Profile) -> str:
    gradients = profile.gradients
    told = f"gradients  {_size(gradients.bytes)} reduced in a step, {gradients.num_tensors} tensors"
    if not gradients.ready:
        return told
    first, last = gradients.ready[0].ready_s, gradients.ready[-1].ready_s
    return f"{told}; the first is ready {_ms(first)} after backward's begin, the last {_ms(last)}"


def _memory_line(profile: Profile) -> str:
    memory = profile.memory
    sizes = [
        f"{name} {_size(value)}"
        for name, value in (
            ("parameters", memory.parameters_bytes),
            ("gradients", memory.gradients_bytes),
            ("optimizer", memory.optimizer_bytes),
            ("buffers", memory.buffers_bytes),
        )
    ]
    peak = f"; peak {_size(memory.peak_bytes)}" if memory.peak_bytes else ""
    return f"memory     {', '.join(sizes)}{peak}"


def _seconds(ranks: RankTimes, name: str) -> float:
    return float(getattr(ranks, f"{name}_s"))


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _size(num_bytes: float) -> str:
    factor, unit = next(((factor, unit) for factor, unit in _UNITS if num_bytes >= factor), (1, "B"))
    return f"{num_bytes / factor:.3g} {unit}"

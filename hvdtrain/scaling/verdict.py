"""One sentence: how many GPUs, or why not, and what to do first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvdtrain.scaling.fit_in_memory import Fitting
from hvdtrain.scaling.forecast import Forecast, Row
from hvdtrain.scaling.step import CAUSES, waited_for_data
from hvdtrain.scaling.whatif import WhatIf, workers_needed

_DATA_BOUND = 0.3  # of the step: above it the input pipeline is mended first
_NO_LOSS = 0.07
_PHRASES = {
    "data": "the input pipeline of a node limits: {share} of the step waits for data{where}",
    "imbalance": "ranks have unequal work, or a short last step: {share} of the step is idle{where}",
    "straggler": "the slowest rank of each step limits: {share} of the step waits for it{where}",
    "latency": "the network's latency takes {share} of the step{where}",
    "bandwidth": "the network's bandwidth takes {share} of the step{where}",
}


@dataclass(frozen=True)
class Bounds:
    """What bounds the choice besides speed: memory, the critical batch, and whether the user's limits did."""

    memory: Fitting
    critical_batch: float | None
    is_limited: bool


def judge(
    forecast: Forecast, recommended: Row, bounds: Bounds, changes: Sequence[WhatIf]
) -> tuple[str, str, bool]:
    """The bottleneck's name, the verdict, and whether more than one GPU is worth it."""
    alone = forecast.rows[0]
    waiting = data_share(forecast)
    bottleneck = _bottleneck(losses(forecast, forecast.rows[-1]))
    if not bounds.memory.fits:
        return bottleneck, _too_large(bounds.memory), False
    critical = bounds.critical_batch
    if critical is not None and alone.global_batch > critical:
        return bottleneck, _past_critical(alone.global_batch, critical), False
    if waiting >= _DATA_BOUND:
        return "data", _data_bound(forecast, waiting), False
    return bottleneck, _use(forecast, recommended, bounds, (bottleneck, changes)), recommended.gpus > 1


def data_share(forecast: Forecast) -> float:
    """Share of one GPU's step that waits for its input."""
    job = forecast.job
    return waited_for_data(job, job.compute_s, 1) / forecast.rows[0].step.total_s


def losses(forecast: Forecast, row: Row) -> dict[str, float]:
    """Shares of a row's step by cause, against GPUs that never wait: what one GPU waits for data is in them.

    They sum to 1 - compute / step.
    """
    found = row.step.losses()
    found["data"] += data_share(forecast) * row.step.alone_s / row.step.total_s
    return found


def _bottleneck(shares: dict[str, float]) -> str:
    if sum(shares.values()) < _NO_LOSS:
        return "none"
    return max(CAUSES, key=lambda cause: shares[cause])


def _too_large(memory: Fitting) -> str:
    needed = max(memory.state_bytes, memory.peak_bytes or 0)
    device = memory.device_bytes or 0
    return (
        f"Data parallelism is not the answer: a replica needs {needed / 1e9:.3g} GB and the GPU has "
        f"{device / 1e9:.3g}; shard parameters, gradients and optimizer state over at least "
        f"{memory.shards} GPUs (sharded data parallel), split the model (tensor or pipeline "
        "parallel), or take a smaller model or micro-batch."
    )


def _past_critical(batch: float, critical: float) -> str:
    return (
        f"Data parallelism is not the answer: one GPU's batch of {batch:g} is past the critical batch of "
        f"about {critical:.3g}, so more samples a step hardly save steps; cut the batch per GPU, or split "
        "the model (tensor or pipeline parallel) to make each step faster."
    )


def _data_bound(forecast: Forecast, waiting: float) -> str:
    workers = workers_needed(forecast.job, forecast.network, 1)
    first = f"give the loader {workers} workers first"
    if workers <= forecast.job.pipeline.workers:
        first = "make the input pipeline faster first"
    return f"Do not scale out: {_percent(waiting)} of the step waits for data; {first}."


def _use(forecast: Forecast, recommended: Row, bounds: Bounds, limit: tuple[str, Sequence[WhatIf]]) -> str:
    bottleneck, changes = limit
    last = forecast.rows[-1]
    band = f"{_percent(recommended.efficiency.low)} to {_percent(recommended.efficiency.high)}"
    parts = [f"Use {_gpus(recommended.gpus)}"]
    if recommended.gpus > 1:
        speed = recommended.samples_per_s.value / forecast.rows[0].samples_per_s.value
        kept = _percent(recommended.efficiency.value)
        parts[0] += f": {speed:.3g} times the speed of one at {kept} efficiency ({band})"
    if recommended.extra_samples > 0.05:
        extra = _percent(recommended.extra_samples)
        parts.append(f"the larger batch needs {extra} more samples to the same target")
    if last.gpus > recommended.gpus:
        parts.append(f"beyond that {_why(forecast, bottleneck, bounds)}")
    elif bottleneck != "none":
        share = losses(forecast, last)[bottleneck]
        parts.append(_PHRASES[bottleneck].format(share=_percent(share), where=""))
    if changes and bottleneck != "none":
        parts.append(f"{changes[0].change} would help most (+{_percent(changes[0].gain)})")
    return "; ".join(parts) + "."


def _why(forecast: Forecast, bottleneck: str, bounds: Bounds) -> str:
    last = forecast.rows[-1]
    statistical = last.effective_efficiency / last.efficiency.value
    if statistical < last.efficiency.value:
        batch, critical = last.global_batch, bounds.critical_batch or 0.0
        sizes = f"{batch:g} at {_gpus(last.gpus)}, critical about {critical:.3g}"
        return f"the batch outgrows what the problem can use ({sizes})"
    if bottleneck != "none":
        share = losses(forecast, last)[bottleneck]
        return _PHRASES[bottleneck].format(share=_percent(share), where=f" at {_gpus(last.gpus)}")
    return "your limits are not kept" if bounds.is_limited else "little is gained"


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"

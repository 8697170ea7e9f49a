"""What would help: changes to job and network, ranked by what they gain at one number of GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hvdtrain.scaling.calibration_unknowns import PRIOR, step_with
from hvdtrain.scaling.job import Job
from hvdtrain.scaling.network import Network
from hvdtrain.scaling.statistics import extra_samples
from hvdtrain.scaling.step import waited_for_data

_MIN_GAIN = 0.005


@dataclass(frozen=True)
class WhatIf:
    """A change, the step and samples/s with it, and the gain in speed to the target as a fraction."""

    change: str
    step_s: float
    samples_per_s: float
    gain: float


def what_ifs(
    job: Job,
    network: Network,
    gpus: int,
    critical_batch: float | None = None,
    shift: Sequence[float] = PRIOR.mean,
    step_s: float | None = None,
) -> list[WhatIf]:
    """The changes that gain something, the best first.

    Where the critical batch is known, a larger batch gains only what it does not spend on more samples.

    Args:
        job: The job.
        network: Its network.
        gpus: The number of GPUs at which the changes are made.
        critical_batch: In samples; None where it is not known.
        shift: What is believed of the unknowns, as of ``step_with``.
        step_s: The step now, where it is another than that: all steps are in proportion to it.
    """
    modelled_s = step_with(job, network, gpus, shift).total_s
    scale = (step_s or modelled_s) / modelled_s
    now = gpus * job.samples / (scale * modelled_s)
    found = []
    for change, other, wires in _changes(job, network, gpus):
        step = scale * step_with(other, wires, gpus, shift).total_s
        rate = gpus * other.samples / step
        wasted = 0.0
        if critical_batch:
            wasted = extra_samples(gpus * other.samples, gpus * job.samples, critical_batch)
        found.append(WhatIf(change, step, rate, rate / now / (1 + wasted) - 1))
    return sorted((one for one in found if one.gain >= _MIN_GAIN), key=lambda one: -one.gain)


def _changes(job: Job, network: Network, gpus: int) -> Iterator[tuple[str, Job, Network]]:
    if gpus > 1:
        yield "a link 2 times as fast", job, _faster(network, 2)
        yield "a link 4 times as fast", job, _faster(network, 4)
        yield (
            f"accumulate over {2 * job.accumulate} micro-batches",
            job.with_batch(2, micro_batches=True),
            network,
        )
        if job.gradient_bytes:
            yield "fp16 compression", job.with_bytes(0.5), network
        if job.local_steps == 1:
            yield "local SGD, averaging every 8 steps", replace(job, local_steps=8), network
        if not network.hierarchical and network.nodes(gpus) > 1 and network.gpus_per_node > 1:
            yield "hierarchical allreduce", job, replace(network, hierarchical=True)
    yield "twice the batch per GPU", job.with_batch(2), network
    workers = workers_needed(job, network, gpus)
    if workers > job.pipeline.workers:
        more = job.with_workers(workers)
        if job.pipeline.workers == 0:
            more = replace(more, pipeline=replace(more.pipeline, waited_s=0.0))
        yield f"{workers} loader workers", more, network


def workers_needed(job: Job, network: Network, gpus: int) -> int:
    """Loader processes of a rank whose step no longer waits for data; what it has if none would help."""
    pipe = job.pipeline
    if not job.compute_s:
        return pipe.workers
    if waited_for_data(job, job.compute_s, min(gpus, network.gpus_per_node)) <= 0.01 * job.compute_s:
        return pipe.workers
    needed = 0.0
    if pipe.cpu_s_per_sample:
        needed = job.samples * pipe.cpu_s_per_sample / job.compute_s
    elif pipe.capacity_samples_per_s:
        needed = max(1, pipe.workers) * job.samples / pipe.capacity_samples_per_s / job.compute_s
    elif pipe.workers == 0:
        needed = pipe.waited_s / job.compute_s
    # One more than the arithmetic: workers end at different times.
    return max(pipe.workers, math.ceil(needed) + 1) if needed else pipe.workers


def _faster(network: Network, factor: float) -> Network:
    return replace(network, inside=network.inside.faster(factor), between=network.between.faster(factor))

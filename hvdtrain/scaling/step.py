"""The time of a step at p ranks: load, compute, exposed reduction, stragglers, each switched on in turn.

t_step = max(t_load, t_forward + t_backward + exposed + t_optimizer) + t_wait, with

- t_load: samples of a rank over what its share of the node's input pipeline delivers;
- exposed = max(0, end of the last buffer - end of backward), after ``overlap``;
- t_wait = E[max of p] (sigma between ranks + sigma between steps), or the quantile of skewed steps, after
  ``straggling``.

A weak scaling is meant: each rank keeps its samples a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean

from hvdtrain.scaling.collectives import Cost
from hvdtrain.scaling.job import Job
from hvdtrain.scaling.network import Network
from hvdtrain.scaling.overlap import added_s
from hvdtrain.scaling.profile import Profile
from hvdtrain.scaling.straggling import excess_of_max

CAUSES = ("data", "imbalance", "straggler", "latency", "bandwidth")


@dataclass(frozen=True)
class Step:
    """A step in seconds: what one rank alone takes, and what each cause adds to it; they sum to ``total_s``.

    ``alone_s`` has in it what the job waits for its own input on one GPU.
    """

    ranks: int
    alone_s: float
    added_s: dict[str, float]

    @property
    def total_s(self) -> float:
        """The whole step."""
        return self.alone_s + sum(self.added_s.values())

    def losses(self) -> dict[str, float]:
        """Shares of the step by cause; they sum to 1 - alone / total, the lost efficiency."""
        return {cause: value / self.total_s for cause, value in self.added_s.items()}


def step_at(job: Job, network: Network, ranks: int) -> Step:
    """The step of ``ranks`` ranks, by cause.

    The causes are switched on one after the other, in the order of ``CAUSES``: each adds what it adds to
    those before it, so a reduction that hides behind a slow loader costs nothing.
    """
    times = [_time(job, network, ranks, CAUSES[:i]) for i in range(len(CAUSES) + 1)]
    # A slower link makes fewer, larger buffers, which may by luck end earlier: no cause takes time away.
    times = [min(time, times[-1]) for time in times]
    added = {cause: times[i + 1] - times[i] for i, cause in enumerate(CAUSES)}
    return Step(ranks, times[0], added)


def step_time(job: Job, network: Network, ranks: int) -> float:
    """Seconds of a step of ``ranks`` ranks."""
    return _time(job, network, ranks, CAUSES)


def _time(job: Job, network: Network, ranks: int, causes: tuple[str, ...]) -> float:
    latency, bandwidth = "latency" in causes, "bandwidth" in causes

    def cost(num_bytes: float) -> Cost:
        whole = network.allreduce(num_bytes, ranks)
        return Cost(whole.latency_s if latency else 0.0, whole.transfer_s if bandwidth else 0.0)

    work = job.compute_s
    if ranks > 1 and latency:
        work += reduction_s(_agreeing(job, network, ranks), cost) + job.overhead_s / job.local_steps
    on_node = min(ranks, network.gpus_per_node) if "data" in causes else 1
    busy = work + waited_for_data(job, work, on_node)
    if ranks > 1:
        if "imbalance" in causes:
            busy += excess_of_max(ranks) * job.imbalance_s + busy * uneven_share(job, ranks)
        if "straggler" in causes:
            busy += job.straggle_s(ranks) / math.sqrt(job.local_steps)
    return busy


def calibrate(job: Job, profile: Profile, network: Network) -> Job:
    """Adds what the profile's own reduction took beyond the model, where that is of the level it ran over.

    It is taken as a cost of each step that does not depend on the number of ranks. A link that the user named
    may be another than the profile's: then its reduction tells nothing of it.
    """
    if profile.size == 1:
        return job
    level = network.inside if len(profile.hosts) == 1 else network.between
    if level.link is not None and level.link.is_told:
        return job
    there = replace(network, gpus_per_node=max(host.ranks for host in profile.hosts))
    agreeing = _agreeing(job, there, profile.size)
    modelled = reduction_s(agreeing, lambda num_bytes: there.allreduce(num_bytes, profile.size))
    measured = fmean(one.exposed_s for one in profile.ranks)
    return replace(job, overhead_s=max(0.0, measured - modelled))


def reduction_s(job: Job, cost: Callable[[float], Cost]) -> float:
    """Seconds that the reduction adds to a step: what is exposed, or what it slows down beside it."""
    if job.local_steps > 1:
        return cost(job.gradient_bytes).total_s / job.local_steps
    backward = job.backward_s / job.accumulate
    return added_s(job.gradients, cost, job.fusing, backward, job.contention)


def _agreeing(job: Job, network: Network, ranks: int) -> Job:
    """With what so many ranks need to agree on what is ready."""
    if not job.fusing.negotiates:
        return job
    return replace(job, fusing=replace(job.fusing, agree_s=network.agreement_s(ranks)))


def waited_for_data(job: Job, work_s: float, ranks_on_node: int) -> float:
    """Seconds that a step waits for its input, if the rest of it takes ``work_s``."""
    pipe = job.pipeline
    here, alone = pipe.rate(ranks_on_node), pipe.rate(1)
    slower = alone / here if math.isfinite(here) else 1.0
    if pipe.workers == 0:
        return pipe.waited_s * slower  # loads between the steps: nothing hides it
    if not math.isfinite(here):
        return pipe.waited_s
    return max(job.samples / here - work_s, pipe.handed_s)


def uneven_share(job: Job, ranks: int) -> float:
    """Share of an epoch's steps that end without samples, where they do not divide by the global batch."""
    if job.samples_per_epoch is None or job.samples_per_epoch < job.samples:
        return 0.0
    needed = job.samples_per_epoch / (ranks * job.samples)
    alone = job.samples_per_epoch / job.samples
    return max(0.0, math.ceil(needed - 1e-9) / needed - math.ceil(alone - 1e-9) / alone)

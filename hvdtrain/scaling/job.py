"""A profiled job as the step model needs it, and the changes that a what-if question makes to it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean

from hvdtrain.scaling.overlap import DDP, HOROVOD, Fusing
from hvdtrain.scaling.profile import Profile, ReadyGradient
from hvdtrain.scaling.straggling import Tail, excess_of_max

_CONTENTION_GPU, _CONTENTION_CPU = 0.1, 0.15
_ELEMENT_BYTES = {"fp16": 2, "bf16": 2}


@dataclass(frozen=True)
class Pipeline:
    """The input pipeline of a rank.

    Attributes:
        workers: Loader processes; 0 loads between the steps.
        capacity_samples_per_s: What one rank's pipeline delivers with its node as profiled; None if unknown.
        cpu_s_per_sample: CPU seconds a sample; None if unknown.
        node_cores: Cores of a node that loaders share; None if unknown.
        waited_s: What a step waited for it where it was profiled.
        handed_s: The part of it that a fast pipeline would cost too, as for handing a batch over.
    """

    workers: int
    capacity_samples_per_s: float | None
    cpu_s_per_sample: float | None
    node_cores: float | None
    waited_s: float
    handed_s: float = 0.0

    def scaled(self, factor: float) -> Pipeline:
        """The pipeline of ``factor`` times the samples a step."""
        return replace(self, waited_s=factor * self.waited_s, handed_s=factor * self.handed_s)

    def rate(self, ranks_on_node: int) -> float:
        """Samples a second that a rank gets where so many share the node; infinite if nothing limits."""
        rate = self.capacity_samples_per_s or math.inf
        if self.cpu_s_per_sample and self.node_cores:
            rate = min(rate, self.node_cores / (ranks_on_node * self.cpu_s_per_sample))
        return rate


@dataclass(frozen=True)
class Job:
    """One step of one rank, in seconds and bytes, without any other rank.

    Attributes:
        forward_s: Forward, of all micro-batches.
        backward_s: Backward, of all micro-batches.
        optimizer_s: The optimizer and what else the step does.
        gradients: Gradients as backward of the last micro-batch makes them ready.
        samples: Samples of a rank in a step.
        accumulate: Micro-batches a step.
        jitter_s: Standard deviation of a rank's work from step to step.
        imbalance_s: Standard deviation between the mean work of ranks.
        local_steps: Steps between averagings; 1 averages gradients in each.
        contention: Share of an overlapped reduction by which backward is slowed.
        overhead_s: What a step with other ranks costs besides, measured.
        samples_per_epoch: Samples of an epoch, for its uneven end; None if unknown.
        tail: How far the slow steps lie off the others, for skewed noise; None if unknown.
    """

    forward_s: float
    backward_s: float
    optimizer_s: float
    gradients: tuple[ReadyGradient, ...]
    samples: float
    accumulate: int
    pipeline: Pipeline
    jitter_s: float
    imbalance_s: float
    fusing: Fusing
    contention: float
    local_steps: int = 1
    overhead_s: float = 0.0
    samples_per_epoch: int | None = None
    tail: Tail | None = None

    def straggle_s(self, ranks: int) -> float:
        """What the slowest of the ranks takes beyond their mean, from step to step."""
        normal = excess_of_max(ranks) * self.jitter_s
        if self.tail is None or not self.tail.is_skewed(self.jitter_s):
            return normal
        return max(normal, self.tail.excess(ranks))

    @property
    def compute_s(self) -> float:
        """Forward, backward and optimizer."""
        return self.forward_s + self.backward_s + self.optimizer_s

    @property
    def gradient_bytes(self) -> float:
        """Bytes that a step reduces."""
        return float(sum(gradient.bytes for gradient in self.gradients))

    def with_batch(self, factor: float, micro_batches: bool = False) -> Job:
        """``factor`` times the samples a step: larger micro-batches, or more of them."""
        scaled = self.gradients
        if not micro_batches:
            scaled = tuple(ReadyGradient(one.bytes, factor * one.ready_s) for one in scaled)
        return replace(
            self,
            forward_s=factor * self.forward_s,
            backward_s=factor * self.backward_s,
            gradients=scaled,
            samples=factor * self.samples,
            accumulate=round(factor * self.accumulate) if micro_batches else self.accumulate,
            jitter_s=math.sqrt(factor) * self.jitter_s,
            tail=None,  # of other steps than these
            imbalance_s=factor * self.imbalance_s,
            pipeline=self.pipeline.scaled(factor),
        )

    def with_bytes(self, factor: float) -> Job:
        """``factor`` times the bytes on the wire."""
        scaled = tuple(ReadyGradient(round(factor * one.bytes), one.ready_s) for one in self.gradients)
        return replace(self, gradients=scaled)

    def with_workers(self, workers: int) -> Job:
        """As many loader processes; each delivers what one did."""
        old = self.pipeline
        if old.capacity_samples_per_s is None:
            return self
        capacity = old.capacity_samples_per_s * workers / max(1, old.workers)
        return replace(self, pipeline=replace(old, workers=workers, capacity_samples_per_s=capacity))


def make_job(profile: Profile) -> Job:
    """The step model's job of a profile."""
    ranks = profile.ranks
    busy = [one.forward_s + one.backward_s + one.optimizer_s + one.other_s for one in ranks]
    imbalance, jitter = 0.0, math.sqrt(fmean(one.compute_std_s**2 for one in ranks))
    if len(ranks) > 1:
        # From the farthest rank: with few ranks the standard deviation itself is hardly known.
        imbalance = max(0.0, max(busy) - fmean(busy)) / excess_of_max(len(ranks))
        # What was waited is what the ranks' noise really costs; noise that all ranks share costs nothing.
        waited = fmean(one.wait_s for one in ranks) / excess_of_max(len(ranks))
        jitter = max(0.0, waited - imbalance)
    gpu = profile.device == "cuda"
    return Job(
        forward_s=fmean(one.forward_s for one in ranks),
        backward_s=fmean(one.backward_s for one in ranks),
        optimizer_s=fmean(one.optimizer_s + one.other_s for one in ranks),
        gradients=_gradients(profile),
        samples=profile.global_batch / profile.size,
        accumulate=profile.accumulate,
        pipeline=_pipeline(profile),
        jitter_s=jitter,
        imbalance_s=imbalance,
        fusing=DDP if profile.backend == "ddp" else HOROVOD,
        # With other ranks beside it, the measured backward has the contention in it.
        contention=0.0 if profile.size > 1 else (_CONTENTION_GPU if gpu else _CONTENTION_CPU),
        samples_per_epoch=profile.samples_per_epoch,
        tail=_tail(profile),
    )


def _tail(profile: Profile) -> Tail:
    step = profile.step_s
    high, top = max(0.0, step.p95 - step.median), max(0.0, step.max - step.median)
    return Tail(high, top, profile.size)


def _pipeline(profile: Profile) -> Pipeline:
    on_node = max(host.ranks for host in profile.hosts)
    loader, waited = profile.loader, fmean(one.load_s for one in profile.ranks)
    pipeline = Pipeline(
        loader.num_workers,
        loader.capacity_samples_per_s,
        loader.cpu_s_per_sample,
        loader.cores_per_rank * on_node,
        waited,
    )
    rest = fmean(one.step_s - one.load_s for one in profile.ranks)
    short = profile.global_batch / profile.size / pipeline.rate(on_node) - rest
    return replace(pipeline, handed_s=max(0.0, waited - max(0.0, short)))


def _gradients(profile: Profile) -> tuple[ReadyGradient, ...]:
    """As they go over the wire: compressed, and without gaps where the profile has no times."""
    ready = profile.gradients.ready
    if not ready:
        # Backward is taken to make them evenly: a hundred pieces are as good as any number.
        backward = fmean(one.backward_s for one in profile.ranks) / profile.accumulate
        size = profile.gradients.bytes / 100
        ready = tuple(ReadyGradient(round(size), backward * (i + 1) / 100) for i in range(100))
    if profile.compression in _ELEMENT_BYTES and profile.gradients.num_parameters:
        # The profile counts bytes as the gradients have them; half of fp32's go over the wire.
        wide = profile.gradients.bytes / profile.gradients.num_parameters
        factor = min(1.0, _ELEMENT_BYTES[profile.compression] / wide) if wide else 1.0
        ready = tuple(ReadyGradient(round(factor * one.bytes), one.ready_s) for one in ready)
    return ready

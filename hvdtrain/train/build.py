"""From a job to the parts of a trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from hvdtrain.backends.base import Backend, Reduction
from hvdtrain.config import Job
from hvdtrain.data.partition import Partition
from hvdtrain.data.sources import build_source
from hvdtrain.train.evaluation import build_evaluation
from hvdtrain.train.keeper import Keeper, Tell
from hvdtrain.train.loading import (
    agreed_listing,
    batch_notes,
    tail_notes,
    training_loader,
    validation_loader,
)
from hvdtrain.train.models import build_model, leaves_gradients_out
from hvdtrain.train.observe import Emit, Length, Observer, Scalars
from hvdtrain.train.one_sample import one_value_layers
from hvdtrain.train.optimizers import build_optimizer
from hvdtrain.train.parts import Parts
from hvdtrain.train.preemption import Watch
from hvdtrain.train.preflight import check_batch, check_batchnorm
from hvdtrain.train.profiling import profile_run
from hvdtrain.train.randomness import seed_everything
from hvdtrain.train.resuming import Restore, order_of, resume, start_anew
from hvdtrain.train.rundir import RunDirectory
from hvdtrain.train.schedule import BEGINNING, Course, Pace, Position
from hvdtrain.train.stall import Progress, Unwatched
from hvdtrain.train.step import Stepper, StepRules
from hvdtrain.train.sync_batchnorm import synchronise_batchnorm
from hvdtrain.train.trainer import Trainer


def measure_length(job: Job, partition: Partition, start: Position = BEGINNING) -> Length:
    """How many steps and epochs a job takes on its data, those before ``start`` included."""
    per_epoch = partition.num_steps()
    left = partition.num_steps(start.consumed)
    if job.steps is None:
        assert job.epochs is not None
        more = job.epochs - start.epoch - 1
        return Length(job.epochs, start.step + (left + more * per_epoch if more >= 0 else 0), per_epoch)
    after_this = -(-max(0, job.steps - start.step - left) // per_epoch)
    # One that is done may lie inside an epoch, which counts, or at the end of one that is not evaluated yet.
    more = int(start.consumed > 0) if job.steps <= start.step else 1 + after_this
    return Length(start.epoch + more, max(job.steps, start.step), per_epoch)


def build_trainer(
    job: Job, backend: Backend, run: RunDirectory | None, emit: Emit, lookouts: Lookouts | None = None
) -> Trainer:
    """The trainer of a job that keeps checkpoints, where it is to go on from; collective.

    Args:
        job: The job.
        backend: The engine, started.
        run: The run directory on rank 0, None elsewhere.
        emit: Shows an event to the user; called on rank 0 only.
        lookouts: Who watches this rank from outside of the loop.
    """
    parts = build_parts(job, backend, run, emit)
    folder = run.checkpoints if run else None
    names = trained_names(parts.stepper.replica.module)
    keeper = Keeper(backend, job.checkpoint, folder, tell_of(parts), names)
    seen = lookouts or Lookouts()
    profile = profile_run(job, parts, run, seen.progress)
    return Trainer(
        replace(
            parts,
            keeper=keeper,
            watch=seen.watch,
            progress=profile.profile,
            recorder=profile,
            profile=profile,
        )
    )


@dataclass(frozen=True)
class Lookouts:
    """Who watches a rank from outside of the training loop.

    Attributes:
        watch: Knows whether this rank was asked to end.
        progress: Hears where this rank is.
    """

    watch: Watch = field(default_factory=Watch)
    progress: Progress = field(default_factory=Unwatched)


Build = Callable[[Job, Backend, RunDirectory | None, Emit, Lookouts], Trainer]


def trained_names(module: nn.Module) -> list[str]:
    """The names of the parameters that training changes; one that is frozen may hold an infinity."""
    return [name for name, parameter in module.named_parameters() if parameter.requires_grad]


def tell_of(parts: Parts) -> Tell:
    """Tells the user something on rank 0, and nothing on the others."""
    return parts.observer.noted if parts.observer else _say_nothing


def _say_nothing(_: str) -> None:
    """Ranks other than 0 tell nothing."""


def build_parts(
    job: Job, backend: Backend, run: RunDirectory | None, emit: Emit, restore: Restore | None = None
) -> Parts:
    """Builds everything that a job names; collective, since replicas are made equal.

    Args:
        job: The job.
        backend: The engine, started.
        run: The run directory on rank 0, None elsewhere.
        emit: Shows an event to the user; called on rank 0 only.
        restore: Finds what to go on from; None does as ``resume`` of the job says.
    """
    check_batch(job, backend.size)
    # The same weights everywhere at the start, then a random stream of its own for each rank.
    seed_everything(job.seed)
    source = build_source(job.data, agreed_listing(job, backend))
    model = build_model(job.model, source.num_classes, source.sample).to(backend.device)
    is_synced = job.sync_batchnorm and backend.size > 1
    alone = [] if is_synced else one_value_layers(model, source.sample)
    if job.sync_batchnorm:
        model = synchronise_batchnorm(model, backend)
    optimizer = build_optimizer(job.optimizer, model)
    evaluation = build_evaluation(job.metrics, source.num_classes)
    train, validation = training_loader(job, backend, source), validation_loader(job, backend, source)
    order = order_of(job, train.partition)
    restore = restore or (resume if job.resume == "auto" else start_anew)
    resumed = restore(backend, run, model, optimizer, order)
    start = resumed.at if resumed else BEGINNING
    length = measure_length(job, train.partition, start)
    check_batchnorm(train.partition, alone, num_steps=length.steps, accumulate=job.batch.accumulate)
    reduction = Reduction(
        job.tuning.compression, job.gradients.reduce, leaves_gradients_out(model, source.sample)
    )
    stepper = Stepper(backend, backend.distribute(model, optimizer, reduction), step_rules(job))
    seed_everything(job.seed + 1 + backend.rank)
    partition = train.partition
    pace = Pace(partition.num_samples, partition.step_size, partition.tail == "drop")
    rate = Course(job.schedule, job.optimizer.lr, pace, job.epochs, job.steps, start)
    observer = _observer(job, run, length, emit, start) if run else None
    if observer:
        observer.started(_facts(job, backend, length, model, rate.peak))
        for note in (
            *(resumed.notes if resumed else ()),
            rate.describe(backend.size),
            *source.notes,
            *batch_notes(train.partition),
            *tail_notes(train.partition),
        ):
            observer.noted(note)
    return Parts(
        backend=backend,
        stepper=stepper,
        train=train,
        validation=validation,
        rate=rate,
        length=length,
        metrics_every_steps=job.output.metrics_every_steps,
        sample=source.sample,
        may_skip=source.may_skip,
        precision=job.precision,
        evaluation=evaluation,
        observer=observer,
        resumed=resumed,
        order=order,
    )


def step_rules(job: Job) -> StepRules:
    """What a job says about its gradients."""
    given = job.gradients
    return StepRules(given.clip_norm, given.clip_value, given.on_nan, job.precision)


def _observer(job: Job, run: RunDirectory, length: Length, emit: Emit, start: Position) -> Observer:
    go_on = job.checkpoint.on_failure == "continue"
    return Observer(run, length, emit, _tensorboard(job, run, start), start, go_on=go_on)


def _tensorboard(job: Job, run: RunDirectory, start: Position) -> Scalars | None:
    if not job.output.tensorboard:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(run.events), purge_step=start.step + 1 if start.step else None)


def _facts(job: Job, backend: Backend, length: Length, model: nn.Module, peak: float) -> dict[str, Any]:
    return {
        "job": job.name,
        "backend": backend.name,
        "size": backend.size,
        "device": str(backend.device.type),
        "global_batch": job.global_batch(backend.size),
        "lr": peak,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "epochs": length.epochs,
        "steps": length.steps,
    }

"""From a job to the parts of a trainer."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from hvdtrain.backends.base import Backend, Reduction
from hvdtrain.config import FolderData, Job, OptimizerConfig
from hvdtrain.data.loader import PartitionLoader
from hvdtrain.data.partition import Partition
from hvdtrain.data.scan import Listing, scan_folder
from hvdtrain.data.sources import Source, build_source
from hvdtrain.errors import InputError
from hvdtrain.train.models import build_model, leaves_gradients_out
from hvdtrain.train.observe import Emit, Length, Observer, Scalars
from hvdtrain.train.preflight import check_batch
from hvdtrain.train.randomness import seed_everything
from hvdtrain.train.rundir import RunDirectory
from hvdtrain.train.schedule import learning_rate
from hvdtrain.train.step import Stepper, StepRules
from hvdtrain.train.sync_batchnorm import synchronise_batchnorm
from hvdtrain.train.trainer import Parts, Trainer


def measure_length(job: Job, partition: Partition) -> Length:
    """How many steps and epochs a job takes on its data."""
    per_epoch = partition.num_steps()
    if job.steps is None:
        assert job.epochs is not None
        return Length(job.epochs, job.epochs * per_epoch, per_epoch)
    return Length(-(-job.steps // per_epoch), job.steps, per_epoch)


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a job; its rate is the job's, whatever the number of ranks."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise InputError("the model has no parameter to train", where="model")
    options: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    if config.name == "sgd":
        return torch.optim.SGD(parameters, momentum=config.momentum, nesterov=config.nesterov, **options)
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(parameters, betas=config.betas, **options)


def build_trainer(job: Job, backend: Backend, run: RunDirectory | None, emit: Emit) -> Trainer:
    """Builds everything that a job names; collective, since replicas are made equal.

    Args:
        job: The job.
        backend: The engine, started.
        run: The run directory on rank 0, None elsewhere.
        emit: Shows an event to the user; called on rank 0 only.
    """
    check_batch(job, backend.size)
    # The same weights everywhere at the start, then a random stream of its own for each rank.
    seed_everything(job.seed)
    source = build_source(job.data, _listing(job, backend))
    model = build_model(job.model, source.num_classes, source.sample).to(backend.device)
    if job.sync_batchnorm:
        model = synchronise_batchnorm(model, backend)
    optimizer = build_optimizer(job.optimizer, model)
    train, validation = (_loader(job, backend, source, shuffle) for shuffle in (True, False))
    length = measure_length(job, train.partition)
    reduction = Reduction(
        job.tuning.compression, job.gradients.reduce, leaves_gradients_out(model, source.sample)
    )
    stepper = Stepper(backend, backend.distribute(model, optimizer, reduction), step_rules(job))
    seed_everything(job.seed + 1 + backend.rank)
    rate = partial(
        learning_rate,
        job.schedule,
        job.optimizer.lr,
        steps_per_epoch=length.steps_per_epoch,
        total_steps=length.steps,
    )
    observer = Observer(run, length, emit, _tensorboard(job, run)) if run else None
    if observer:
        observer.started(_facts(job, backend, length, model))
        for note in (*source.notes, *_tail_notes(train.partition)):
            observer.noted(note)
    return Trainer(
        Parts(
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
            observer=observer,
        )
    )


def step_rules(job: Job) -> StepRules:
    """What a job says about its gradients."""
    given = job.gradients
    return StepRules(given.clip_norm, given.clip_value, given.on_nan, job.precision)


def _listing(job: Job, backend: Backend) -> Listing | None:
    """What a folder of images holds, looked up by rank 0 alone: one walk instead of one per rank."""
    if not isinstance(job.data, FolderData):
        return None
    found: Listing | str = ""
    if backend.rank == 0:
        try:
            found = scan_folder(job.data)
        except InputError as error:
            found = str(error)
    found = backend.broadcast(found)
    if isinstance(found, str):
        raise InputError(found)
    return found


def _loader(job: Job, backend: Backend, source: Source, training: bool) -> PartitionLoader:
    dataset = source.train if training else source.validation
    partition = Partition(
        len(dataset),  # type: ignore[arg-type]  # build_source refuses what has no length
        backend.size,
        global_batch=job.global_batch(backend.size),
        tail=job.batch.tail if training else "weight",
        shuffle=training,
        seed=job.seed,
    )
    return PartitionLoader(
        dataset,
        partition,
        backend.rank,
        workers=job.data.workers,
        may_skip=source.may_skip,
        pin_memory=backend.device.type == "cuda",
    )


def _tensorboard(job: Job, run: RunDirectory) -> Scalars | None:
    if not job.output.tensorboard:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(run.events))


def _tail_notes(partition: Partition) -> list[str]:
    """What is left out or counted twice per epoch: never silent."""
    notes = []
    if partition.num_dropped:
        notes.append(f"{partition.num_dropped} samples are dropped in each epoch (batch.tail=drop)")
    if partition.num_padded:
        notes.append(f"{partition.num_padded} samples are read twice in each epoch (batch.tail=pad)")
    return notes


def _facts(job: Job, backend: Backend, length: Length, model: nn.Module) -> dict[str, Any]:
    return {
        "job": job.name,
        "backend": backend.name,
        "size": backend.size,
        "device": str(backend.device.type),
        "global_batch": job.global_batch(backend.size),
        "lr": job.optimizer.lr,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "epochs": length.epochs,
        "steps": length.steps,
    }

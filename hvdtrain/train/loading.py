"""From a job to its loaders."""

from __future__ import annotations

from hvdtrain.backends.base import Backend
from hvdtrain.config import Job
from hvdtrain.data.agreement import check_equal_lengths, check_world
from hvdtrain.data.listing import has_listing, list_source
from hvdtrain.data.loader import PartitionLoader
from hvdtrain.data.partition import Partition
from hvdtrain.data.sampling import build_sampling
from hvdtrain.data.scan import Listing
from hvdtrain.data.sources import Source
from hvdtrain.data.tarindex import TarListing
from hvdtrain.errors import InputError


def agreed_listing(job: Job, backend: Backend) -> Listing | TarListing | None:
    """What a folder of images or tar shards hold, looked up by rank 0 alone; collective."""
    if not has_listing(job.data):
        return None
    found: Listing | TarListing | str | None = ""
    if backend.rank == 0:
        try:
            found = list_source(job.data)
        except InputError as error:
            found = str(error)
    found = backend.broadcast(found)
    if isinstance(found, str):
        raise InputError(found)
    return found


def training_loader(job: Job, backend: Backend, source: Source) -> PartitionLoader:
    """Batches of this rank's part of the training data; collective.

    Raises:
        InputError: The ranks' data sets differ in length, or there are more ranks than samples.
    """
    length = _agreed_length(backend, source.train, "training")
    check_world(length, backend.size, job.batch.tail)
    global_batch = job.global_batch(backend.size)
    config = getattr(job.data, "sampling", None)
    partition = Partition(
        length,
        backend.size,
        global_batch=global_batch,
        tail=job.batch.tail,
        seed=job.seed,
        sampling=build_sampling(config, source.train, job.seed, global_batch) if config else None,
    )
    return PartitionLoader(
        source.train,
        partition,
        backend.rank,
        workers=job.data.workers,
        may_skip=source.may_skip,
        pin_memory=backend.device.type == "cuda",
        accumulate=job.batch.accumulate,
    )


def validation_loader(job: Job, backend: Backend, source: Source) -> PartitionLoader:
    """Batches of this rank's part of the held-out data, each sample once; collective."""
    length = _agreed_length(backend, source.validation, "validation")
    size = job.global_batch(backend.size)
    return PartitionLoader(
        source.validation,
        Partition(length, backend.size, global_batch=size, shuffle=False, seed=job.seed),
        backend.rank,
        workers=job.data.workers,
        may_skip=source.may_skip,
        pin_memory=backend.device.type == "cuda",
    )


def tail_notes(partition: Partition, key: str = "batch.tail") -> list[str]:
    """What is left out or counted twice per epoch: never silent."""
    notes = []
    if partition.num_dropped:
        notes.append(f"{_samples(partition.num_dropped)} dropped in each epoch ({key}=drop)")
    if partition.num_padded:
        notes.append(f"{_samples(partition.num_padded)} read twice in each epoch ({key}=pad)")
    return notes


def batch_notes(partition: Partition) -> list[str]:
    """That a step never gets the batch that was asked for."""
    asked, there = partition.step_size, partition.num_samples
    told = f"the global batch of {asked} is larger than the data set of {there}: one step per epoch"
    return [told] if asked > there else []


def _samples(count: int) -> str:
    return "1 sample is" if count == 1 else f"{count} samples are"


def _agreed_length(backend: Backend, dataset: object, name: str) -> int:
    length = len(dataset)  # type: ignore[arg-type]  # build_source refuses what has no length
    check_equal_lengths(backend.gather(length), f"the {name} data set")
    return length

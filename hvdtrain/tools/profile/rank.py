"""One rank of ``hvdtrain profile``: trains a job for some steps and tells where their time went."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hvdtrain.backends.choose import choose_backend
from hvdtrain.backends.start import start_backend
from hvdtrain.config import Job
from hvdtrain.data.loader import Batch, PartitionLoader
from hvdtrain.errors import ExitCode
from hvdtrain.measure.noise_scale import NoiseRecord
from hvdtrain.measure.profile_facts import Measured, Replicated, Seats, find_seats, make_profile
from hvdtrain.measure.profile_gather import RankMeasures, noise_of
from hvdtrain.measure.profile_gpu import GpuMeter, mean_of
from hvdtrain.measure.profile_loader import Pouring, pour
from hvdtrain.measure.profile_recorder import ProfileRecorder
from hvdtrain.measure.profile_times import table_of
from hvdtrain.measure.profile_trace import trace_document
from hvdtrain.scaling.profile import Loader
from hvdtrain.topology.environ import World, find_world
from hvdtrain.train.build import build_parts
from hvdtrain.train.ending import end_rank
from hvdtrain.train.environment import prepare_environment
from hvdtrain.train.launching import IMPORT_PATH, JOB
from hvdtrain.train.observe import Length
from hvdtrain.train.parts import Parts
from hvdtrain.train.profile_request import ProfileRequest, asked_profile
from hvdtrain.train.profiling import StepRecorder, job_facts, record_steps
from hvdtrain.train.rank import relay
from hvdtrain.train.seats import take_seats
from hvdtrain.train.trainer import Trainer

_SAMPLE_EVERY = 10  # steps


def profile_job(job: Job, world: World, request: ProfileRequest) -> dict[str, Any]:
    """Trains as one rank; collective.

    Args:
        job: The job, the same on all ranks. Its length is not used, only told.
        world: Which rank this is.
        request: What to measure.

    Returns:
        ``profile``, the document of profile.json, and ``trace`` if asked for; the same on all ranks.
    """
    name, _ = choose_backend(job.backend, world.size)
    prepare_environment(job.tuning, world, name)
    backend = start_backend(name, world)
    take_seats(backend)
    seats = find_seats(backend)
    parts = build_parts(job, backend, None, _say_nothing)
    recorder = record_steps(parts.stepper, backend, request.steps, _SAMPLE_EVERY)
    recorder.norms.batch = float(parts.train.partition.step_size)
    trainer = Trainer(_endless(parts, recorder))
    try:
        backend.gather(None)  # all loaders at once: those of a host share its cores and its disk
        loader = pour(parts.train, job.data.workers)
        meter = GpuMeter(backend.device)
        parts.stepper.replica.model.train()
        trainer.run_steps(_Steps(parts.train, recorder, request, meter).batches(), 0)
        gpu, has_trace = meter.end(), request.trace is not None
        mine = RankMeasures.of(recorder, has_spans=has_trace, loader=loader, gpu=gpu)
        document = _document(job, parts, seats, recorder, backend.gather(mine))
    finally:
        recorder.close()
        trainer.close()
    backend.close()
    return document


class _Steps:
    """Hands out batches until as many steps are kept as were asked for, the same on all ranks."""

    def __init__(
        self, loader: PartitionLoader, recorder: ProfileRecorder, request: ProfileRequest, meter: GpuMeter
    ) -> None:
        self._loader, self._recorder, self._request, self._meter = loader, recorder, request, meter

    def batches(self) -> Iterator[Batch]:
        """Epoch after epoch, as training reads them."""
        epoch, clock = 0, self._recorder.clock
        is_warm = False
        while True:
            for batch in self._loader.batches(epoch):
                if batch.number == 0 and not is_warm and self._recorder.num_steps >= self._request.warm_up:
                    is_warm = True
                    clock.clear()
                    self._meter.begin()
                elif batch.number == 0 and is_warm and len(clock) >= self._request.steps:
                    return
                yield batch
            epoch += 1


def _endless(parts: Parts, recorder: ProfileRecorder) -> Parts:
    """A run that is not ended by its length: the batches end it."""
    length = Length(sys.maxsize, sys.maxsize, parts.length.steps_per_epoch)
    return replace(parts, length=length, progress=recorder, recorder=StepRecorder(recorder))


def _document(
    job: Job, parts: Parts, seats: Seats, recorder: ProfileRecorder, told: list[RankMeasures]
) -> dict[str, Any]:
    backend, replica = parts.backend, parts.stepper.replica
    facts = job_facts(job, parts, "profile")
    table = table_of([rank.rows for rank in told])
    profile = make_profile(
        facts,
        seats,
        backend,
        Replicated(replica.module, replica.optimizer, backend.device),
        Measured(
            table,
            recorder.ready.gradients(),
            _loader(job, seats, [rank.loader for rank in told]),
            mean_of([rank.gpu for rank in told]),
            noise_of(told, NoiseRecord(facts.global_batch / backend.size, facts.global_batch)),
        ),
    )
    document: dict[str, Any] = {"profile": profile.document()}
    if told[0].spans:
        document["trace"] = trace_document([rank.spans for rank in told], table, seats.hosts)
    return document


def _loader(job: Job, seats: Seats, told: list[Pouring]) -> Loader:
    """That of the slowest rank, which all wait for."""
    known = [rank for rank in told if rank.samples_per_s is not None]
    least = min(known, key=lambda rank: rank.samples_per_s or 0.0, default=Pouring())
    return Loader(
        job.data.workers, least.samples_per_s, least.cpu_s_per_sample, cores_per_rank=seats.cores_per_rank
    )


def _say_nothing(_event: dict[str, Any]) -> None:
    """A measurement has no audience."""


def main(env: Mapping[str, str]) -> int:
    """The program of a rank."""
    try:
        world = find_world(env)
        sys.path += [folder for folder in env.get(IMPORT_PATH, "").split(os.pathsep) if folder]
        document = profile_job(Job.model_validate_json(env[JOB]), world, asked_profile(env))
        if world.rank == 0:
            relay({"event": "result", "document": document})
    except BaseException as error:
        end_rank(error)
    return int(ExitCode.DONE)


if __name__ == "__main__":
    sys.exit(main(os.environ))

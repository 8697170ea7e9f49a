"""The profile that every training keeps of itself: from a job's parts to who records, tells and writes."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from hvdtrain.backends.base import Backend
from hvdtrain.config import Job
from hvdtrain.data.loader import Batch
from hvdtrain.measure.noise_scale import NoiseRecord
from hvdtrain.measure.profile_facts import JobFacts, Measured, Replicated, find_seats, make_profile
from hvdtrain.measure.profile_pace import Pace, Told, rows_for
from hvdtrain.measure.profile_recorder import Listener, ProfileRecorder, Trained
from hvdtrain.measure.profile_run import Outlet, RunProfile
from hvdtrain.measure.profile_times import Table
from hvdtrain.scaling.profile import Loader, NoiseScale
from hvdtrain.train.rundir import RunDirectory
from hvdtrain.train.step import StepEnd, Stepper

if TYPE_CHECKING:
    import torch

    from hvdtrain.train.parts import Parts

SAMPLE_EVERY = 50  # steps: with many small layers a sampled one takes a fifth longer


class StepRecorder:
    """Hears of every step as the trainer's recorder, for a profile; see ``parts.Recorder``."""

    def __init__(self, recorder: ProfileRecorder) -> None:
        self.profile = recorder

    def passed(self, batch: Batch, loss: torch.Tensor | None) -> None:  # noqa: ARG002
        """A forward pass is done, its backward pass is not."""
        total = None if batch.global_count is None else float(batch.global_count)
        self.profile.weigh(float(batch.count), total)

    def stepped(self, end: StepEnd) -> None:
        """A step is done; collective."""


class RunningProfile(StepRecorder):
    """The profile of a training, which ``profile.json`` of its run directory holds.

    Args:
        recorder: Of this rank.
        pace: Lets the ranks tell.
        book: What rank 0 was told; None elsewhere.
    """

    def __init__(self, recorder: ProfileRecorder, pace: Pace, book: RunProfile | None) -> None:
        super().__init__(recorder)
        self._pace, self._book = pace, book

    def stepped(self, end: StepEnd) -> None:  # noqa: ARG002
        """A step is done; collective."""
        self._pace.stepped()

    def finish(self) -> None:
        """The training is done; collective."""
        self._pace.finish()
        self.profile.close()
        if self._book:
            self._book.write()


def record_steps(stepper: Stepper, backend: Backend, keep: int, sample_every: int) -> ProfileRecorder:
    """Records the steps of a stepper.

    Args:
        stepper: Takes the steps.
        backend: The engine.
        keep: Steps whose times are kept.
        sample_every: Steps of which one is sampled.
    """
    replica = stepper.replica
    trained = Trained(
        replica.trained,
        backend.device,
        backend.size,
        reduces_inside=replica.needs_backward and replica.has_gradients,
        has_gradients=replica.has_gradients,
        loss_scale=stepper.scaler.get_scale,
        listen=replica.hear_gradients,
    )
    recorder = ProfileRecorder(trained, keep, sample_every)
    stepper.watch = recorder.watch
    return recorder


def profile_run(job: Job, parts: Parts, run: RunDirectory | None, listener: Listener) -> RunningProfile:
    """Records a training and lets rank 0 write its profile; collective.

    Args:
        job: The job.
        parts: What trains.
        run: The run directory on rank 0, None elsewhere.
        listener: Who hears of the training's sections too.
    """
    backend = parts.backend
    recorder = record_steps(parts.stepper, backend, rows_for(backend.size), SAMPLE_EVERY)
    recorder.listener = listener
    recorder.norms.batch = float(parts.train.partition.step_size)
    seats = find_seats(backend)
    facts = job_facts(job, parts, "train")
    replica = parts.stepper.replica
    replicated = Replicated(replica.module, replica.optimizer, backend.device)
    loader = Loader(job.data.workers, None, None, seats.cores_per_rank)

    def write(table: Table, noise: NoiseScale | None) -> None:
        assert run
        measured = Measured(table, recorder.ready.gradients(), loader, noise_scale=noise)
        with suppress(OSError):  # a full disk: the training itself is worth more
            run.write_json(
                "profile.json", make_profile(facts, seats, backend, replicated, measured).document()
            )

    book = None
    if run and parts.observer:
        outlet = Outlet(write, parts.observer.noted, parts.observer.add)
        noise = NoiseRecord(facts.global_batch / backend.size, facts.global_batch)
        book = RunProfile(seats.hosts, noise, outlet)
    pace = Pace(backend, recorder, book.hear if book else _hear_nothing)
    return RunningProfile(recorder, pace, book)


def job_facts(job: Job, parts: Parts, source: str) -> JobFacts:
    """What a profile says of a job."""
    return JobFacts(
        job=job.name,
        source=source,
        precision=job.precision,
        compression=job.tuning.compression,
        global_batch=parts.train.partition.step_size,
        accumulate=job.batch.accumulate,
        num_workers=job.data.workers,
        samples_per_epoch=parts.train.partition.num_samples,
        epochs=None if job.epochs is None else float(job.epochs),
        total_steps=parts.length.steps or None,
    )


def _hear_nothing(_told: Told) -> None:
    """Ranks other than 0 only tell."""

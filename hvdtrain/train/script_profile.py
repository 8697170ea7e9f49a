"""Where the time of a user's own loop goes, recorded from inside of its run.

A batch is loaded from when the loop asks for it to when it gets it; what the loop does with it up to
``run.step`` is the forward pass; the rest stands inside of ``run.step``.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch

from hvdtrain.backends.base import Backend, Replica
from hvdtrain.errors import InputError
from hvdtrain.files import write_atomically
from hvdtrain.measure.noise_scale import NoiseRecord
from hvdtrain.measure.profile_facts import JobFacts, Measured, Replicated, find_seats, make_profile
from hvdtrain.measure.profile_gather import RankMeasures, noise_of
from hvdtrain.measure.profile_times import table_of
from hvdtrain.measure.profile_trace import trace_document
from hvdtrain.scaling.profile import Loader
from hvdtrain.train.profile_request import LEAST_STEPS, ProfileRequest
from hvdtrain.train.profiling import record_steps
from hvdtrain.train.settings import Settings
from hvdtrain.train.step import Share, StepEnd, Stepper, StepRules

_SAMPLE_EVERY = 10  # steps


class Diary(Protocol):
    """What hears of a run's loop, if anybody does."""

    def stepper(self, backend: Backend, replica: Replica, rules: StepRules, name: str) -> Stepper:
        """Makes what takes the steps of a model."""

    def asked(self) -> None:
        """A training loop asks for its next batch; collective."""

    def finish(self) -> None:
        """The run ends; collective."""


class NoDiary:
    """Nobody hears."""

    stepper = Stepper

    def asked(self) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Nothing."""


NO_DIARY = NoDiary()


class ScriptProfile:
    """Profiles a run from its first steps on.

    Args:
        backend: The engine.
        request: What to measure, and where to write it.
        settings: Of the run.
        note: Tells the user something.
    """

    def __init__(
        self, backend: Backend, request: ProfileRequest, settings: Settings, note: Callable[[str], None]
    ) -> None:
        self._backend, self._request, self._settings, self._note = backend, request, settings, note
        self._steppers: list[_TimedStepper] = []
        self._is_asked = self._is_warm = self._is_done = self._is_within = False
        self._weight = 0.0

    def stepper(self, backend: Backend, replica: Replica, rules: StepRules, name: str) -> Stepper:
        """Makes what takes the steps of a model; of several, the gradients of the first are looked at."""
        made = _TimedStepper(backend, replica, rules, name, self)
        if not self._steppers:
            self._recorder = record_steps(made, self._backend, self._request.steps, _SAMPLE_EVERY)
        made.watch = self._watch
        self._steppers.append(made)
        return made

    def asked(self) -> None:
        """A training loop asks for its next batch; collective after the last step that is measured."""
        if self._is_done or not self._steppers:
            return
        if self._is_within:
            self._recorder.enter("loading")
            return
        self._is_asked = True
        self._recorder.tick(0)
        if not self._is_warm and self._recorder.num_steps >= self._request.warm_up:
            self._is_warm = True
            self._recorder.clock.clear()
        if self._is_warm and len(self._recorder.clock) >= self._request.steps:
            self._write()

    def begun(self, share: Share) -> None:
        """The loop got a batch."""
        if not self._is_hearing:
            return
        self._recorder.enter("forward")
        self._weight = max(self._weight, share.weight)  # the last batch of an epoch may be a short one

    def backward(self, share: Share, needs_backward: bool) -> None:
        """A backward pass begins."""
        if not self._is_hearing:
            return
        norms = self._recorder.norms
        norms.batch = norms.batch or share.total or 0.0
        self._recorder.weigh(share.weight, share.total)
        self._recorder.enter("reduction" if needs_backward and share.is_last else "backward")
        self._is_within = not share.is_last

    def enter(self, section: str) -> None:
        """This rank goes on with another part of its work."""
        if self._is_hearing:
            self._recorder.enter(section)

    def finish(self) -> None:
        """The run ends; collective."""
        if self._is_done or not self._steppers:
            return
        self._write()

    @property
    def _is_hearing(self) -> bool:
        """Whether steps are recorded: where no loop asks for batches none would ever end."""
        return self._is_asked and not self._is_done

    def _watch(self, moment: str) -> None:
        """The gradients of a step are reduced, or clipped."""
        if self._is_hearing:
            self._recorder.watch(moment)

    def _write(self) -> None:
        self._is_done = True
        recorder = self._recorder
        recorder.close()
        seats = find_seats(self._backend)
        told = self._backend.gather(RankMeasures.of(recorder, has_spans=self._request.trace is not None))
        batch = round(sum(self._backend.gather(self._weight * self._settings.accumulate)))
        table = table_of([rank.rows for rank in told])
        if self._backend.rank != 0:
            return
        if not self._is_warm or len(table) < LEAST_STEPS:
            self._note(self._why_none())
            return
        replica = self._steppers[0].replica
        settings = self._settings
        facts = JobFacts(
            job=Path(sys.argv[0]).stem or "script",
            source="script",
            precision=settings.precision,
            compression="none",
            global_batch=max(1, batch),
            accumulate=settings.accumulate,
            num_workers=len(multiprocessing.active_children()),
        )
        noise = noise_of(told, NoiseRecord(recorder.norms.batch / self._backend.size, recorder.norms.batch))
        measured = Measured(
            table,
            recorder.ready.gradients(),
            Loader(facts.num_workers, None, None, seats.cores_per_rank),
            noise_scale=noise,
        )
        replicated = Replicated(replica.module, replica.optimizer, self._backend.device)
        profile = make_profile(facts, seats, self._backend, replicated, measured)
        self._put(self._request.file, profile.document())
        self._put(self._request.trace, trace_document([rank.spans for rank in told], table, seats.hosts))

    def _why_none(self) -> str:
        if not self._is_asked:
            return "no profile: no training loop went over run.loader(...) or run.progress(...)"
        return f"no profile: the run ended after {self._recorder.num_steps} steps, before enough were timed"

    def _put(self, path: Path | None, document: object) -> None:
        if path is None:
            return
        try:
            write_atomically(path, json.dumps(document) + "\n")
        except OSError as error:
            self._note(f"{path} cannot be written: {error.strerror}")


class _TimedStepper(Stepper):
    """A stepper that says where it is."""

    def __init__(
        self, backend: Backend, replica: Replica, rules: StepRules, name: str, profile: ScriptProfile
    ) -> None:
        super().__init__(backend, replica, rules, name)
        self._profile = profile

    def begin(self, share: Share) -> None:
        """Before the forward pass."""
        super().begin(share)
        self._profile.begun(share)

    def backward(self, loss: torch.Tensor | None, share: Share, *, alone: bool = True) -> None:
        """As ``Stepper``'s."""
        self._profile.backward(share, self.replica.needs_backward)
        super().backward(loss, share, alone=alone)
        self._profile.enter("reduction" if share.is_last else "agreement")

    def end(self) -> StepEnd:
        """As ``Stepper``'s."""
        end = super().end()
        self._profile.enter("agreement")
        return end


def open_diary(
    backend: Backend, request: ProfileRequest, settings: Settings, note: Callable[[str], None]
) -> Diary:
    """The diary of a run: a profile where a file is asked for.

    Raises:
        InputError: The file's folder is not there; seen by rank 0, told to all.
    """
    if request.file is None:
        return NO_DIARY
    missing = "" if request.file.parent.is_dir() else str(request.file.parent)
    if missing := backend.broadcast(missing):
        raise InputError(f"there is no folder {missing} for the profile")
    return ScriptProfile(backend, request, settings, note)

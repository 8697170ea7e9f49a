"""A run of a script that saves where it is and goes on from there."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hvdtrain.backends.base import Backend
from hvdtrain.config import PreemptionConfig
from hvdtrain.errors import ExitCode, InputError, Preempted
from hvdtrain.train.course import Course
from hvdtrain.train.feeding import Loader
from hvdtrain.train.handed import check_epochs, check_resume
from hvdtrain.train.peers import Peers
from hvdtrain.train.preemption import Watch, deadline
from hvdtrain.train.script_checkpoints import ScriptCheckpoints
from hvdtrain.train.script_state import Held, check_objects
from hvdtrain.train.settings import Settings
from hvdtrain.train.step import Share, StepEnd, Stepper
from hvdtrain.train.waiting import Waiting


class Resumable(Peers):
    """One rank's side of a run that may be stopped and started again."""

    def __init__(self, engine: Backend, waiting: Waiting, logger: logging.Logger, settings: Settings) -> None:
        super().__init__(engine, waiting)
        self.logger, self._settings, self._course = logger, settings, Course()
        self._steppers: dict[int, Stepper] = {}
        self._loaders: list[Loader] = []
        self._share: Share | None = None
        self._stepped: set[int] = set()
        self._checkpoints: ScriptCheckpoints | None = None
        self._is_asked = False

    @property
    def epoch(self) -> int | None:
        """The epoch that ``epochs`` is in, from 0; None outside of it."""
        return self._course.epoch

    def epochs(self, count: int) -> Iterator[int]:
        """0 to ``count - 1``, or from where the run goes on; loaders get a new order in each."""
        check_epochs(count)
        yield from self._course.over(count)

    def resume(
        self,
        folder: str | os.PathLike[str],
        *,
        keep_last: int = 2,
        signals: Sequence[str] = ("SIGTERM", "SIGUSR1"),
        **objects: Any,
    ) -> int:
        """Goes on from the newest whole checkpoint in a folder, or begins where there is none; collective.

        Call it once, behind all ``distribute`` and ``loader`` and right before the loop. Only rank 0 has to
        see the files.

        Args:
            folder: Of this training alone; checkpoints lie in ``checkpoints`` of it.
            keep_last: Newest ones that stay.
            signals: What asks the run to save and to end with exit code 75, in the next ``checkpoint``; the
                end of a Slurm allocation does too.
            objects: What else is saved and found again, by name: a schedule, an average of weights. Each has
                ``state_dict`` and ``load_state_dict``.

        Returns:
            Steps that were taken before; 0 at the beginning.

        Raises:
            InputError: The folder is another run's, or what it holds does not fit.
        """
        self._check_open()
        if self._checkpoints is not None or not self._steppers or self._share is not None:
            raise InputError("run.resume belongs once behind all run.distribute and before the loop")
        check_resume(keep_last, signals)
        check_objects(objects)
        watch = Watch(signals, deadline(os.environ, PreemptionConfig().margin_s))
        steppers, loaders = [*self._steppers.values()], [one for one in self._loaders if one.train]
        held = Held(steppers, loaders, self._course, objects, self._settings.seed)
        self._checkpoints = ScriptCheckpoints(
            self._backend, self._meet, held, Path(folder), keep_last, self.logger, watch
        )
        with self._waiting.call("run.resume"):
            self._meet("run.resume")
        with self._waiting.patient("run.resume"):  # a large checkpoint is read for a while
            self._checkpoints.open()
        for stepper in steppers:  # whichever is trained first
            stepper.ask = (watch.is_asked,)
        return self._course.num_steps

    def checkpoint(self, *, every_steps: int | None = None) -> None:
        """Saves where the run is, in the background, and ends it where it was asked to end; collective.

        Call it at the end of the body of a loop: what stands in front of it is not done again, what stands
        behind it is not done if the run goes on from here.

        Args:
            every_steps: Save only where the number of steps is a multiple of it; None saves.

        Raises:
            InputError: ``resume`` was not called, or nobody could go on from there.
            AgreedError: The save before failed.
            SystemExit: With exit code 75: the run was asked to end, and has saved.
        """
        self._check_open()
        if self._checkpoints is None:
            raise InputError(
                "run.checkpoint without run.resume, which says where to", do="call it before the loop"
            )
        is_due = every_steps is None or self._is_due(every_steps)
        self._course.check_place(is_due=is_due)
        if not is_due:
            return
        if self._share is not None and not (self._stepped and self._share.is_last):
            raise InputError(
                "run.checkpoint stands in the middle of a step",
                do="call it behind run.step, at the end of the loop",
            )
        with self._waiting.call("run.checkpoint"):
            self._meet("run.checkpoint")  # what comes may take as long as the disk does
            # Who was asked to end since the last step is heard too.
            self._is_asked |= any(self._backend.gather(self._checkpoints.watch.is_asked()))
        with self._waiting.patient("run.checkpoint"):
            self._checkpoints.save()
            if self._is_asked:
                self._checkpoints.finish(must_stand=True)
        if self._is_asked:
            self._end_asked(self._checkpoints)

    def close(self) -> None:
        """Ends the run."""
        raise NotImplementedError

    def _end_checkpoints(self) -> None:
        """Waits until the last save is on the disk; collective."""
        if self._checkpoints is not None:
            self._checkpoints.finish()
            self._checkpoints.close()

    def _heed(self, end: StepEnd) -> None:
        """A step of all ranks is done."""
        self._is_asked |= any(end.votes)

    def _is_due(self, every_steps: int) -> bool:
        if isinstance(every_steps, bool) or not isinstance(every_steps, int) or every_steps < 1:
            raise InputError(f"run.checkpoint got every_steps={every_steps!r}", legal="a whole number from 1")
        if self._share is not None and not self._share.is_last:
            return False
        step = self._course.num_steps
        return self._is_asked or (step > 0 and step % every_steps == 0)

    def _end_asked(self, checkpoints: ScriptCheckpoints) -> None:
        self.logger.info("%s", Preempted(self._course.num_steps, checkpoints.watch.reason))
        self.close()
        sys.exit(int(ExitCode.PREEMPTED))

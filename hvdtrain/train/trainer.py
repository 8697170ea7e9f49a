"""The training loop. It builds nothing: it receives its parts.

Every rank runs the same steps in the same order. A rank whose share of the last batch is
empty still takes part in the reduction, with weight zero; ``step.py`` has the arithmetic.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch

from hvdtrain.data.loader import Batch
from hvdtrain.errors import Preempted
from hvdtrain.train.asking import Asking
from hvdtrain.train.classes import classify
from hvdtrain.train.forward import Forward, Measured
from hvdtrain.train.metrics import Means, Tally, Value, scalars
from hvdtrain.train.observe import finite
from hvdtrain.train.parts import Outcome, Parts
from hvdtrain.train.randomness import random_state, restore_random_state
from hvdtrain.train.resuming import Resumed
from hvdtrain.train.schedule import BEGINNING, Position
from hvdtrain.train.step import Share, StepEnd
from hvdtrain.train.unreadable import Unreadable


class Trainer:
    """Trains a replica to the end of its length."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        start = parts.resumed.at if parts.resumed else BEGINNING
        self._step, self._epoch, self._consumed = start.step, start.epoch, start.consumed
        parts.stepper.step = self._step
        if parts.keeper:
            parts.stepper.ask = (parts.watch.is_asked, parts.keeper.has_failed)
        self._forward = Forward(parts)
        self._asking = Asking(parts, lambda: self._keep(StepEnd(votes=(1, 0))))
        self._passes: list[Measured] = []
        self._norm: float | None = None
        self._samples = 0
        self._seconds = 0.0
        self._window = Tally()
        self._epoch_sums = Tally()
        self._unreadable = Unreadable()
        if parts.resumed:
            self._resume(parts.resumed)

    def fit(self) -> Outcome:
        """Runs all epochs, each followed by an evaluation; collective."""
        length = self._parts.length
        trained = self._epoch_sums.reduced(self._parts.backend, "epoch")
        validated, metrics = Means.of([0, 0, 0]), dict[str, Value]()
        if self._epoch >= length.epochs:
            # A run that was finished when its last checkpoint was made.
            validated, metrics = self.evaluate()
        for epoch in range(self._epoch, length.epochs):
            trained = self._train_epoch(epoch)
            validated, metrics = self.evaluate()
            is_whole = not self._parts.train.num_steps(self._consumed)
            if is_whole:  # or the run's length ends inside it, and a longer one goes on there
                self._epoch, self._consumed = epoch + 1, 0
            if self._parts.may_skip:
                self._unreadable.tell(self._parts.backend, self._parts.observer)
            if self._parts.observer:
                values = {
                    "epoch_loss": trained.loss,
                    "validation_loss": validated.loss,
                    "validation_accuracy": validated.accuracy,
                    **{f"validation_{name}": value for name, value in scalars(metrics).items()},
                }
                self._parts.observer.evaluated(epoch + 1, self._step, values)
            self._keep(is_epoch_end=is_whole, measured=validated)
        self._end_profile()
        num_skipped = self._parts.stepper.num_skipped
        rates = (self._samples, self._seconds, num_skipped)
        return Outcome(length.epochs, self._step, trained, validated, metrics, *rates)

    def _end_profile(self) -> None:
        """Collective: the ranks tell of their last steps."""
        if self._parts.profile:
            self._parts.profile.finish()

    def _train_epoch(self, epoch: int) -> Means:
        """Trains on every sample of the epoch, or up to the last step of the run."""
        parts = self._parts
        if not self._consumed:
            self._epoch_sums = Tally()
        parts.stepper.replica.model.train()
        is_done = self._step >= parts.length.steps  # one that goes on where it was cut short
        self.run_steps(() if is_done else self._asking.begun(parts.train, epoch, self._consumed), epoch)
        self._epoch_sums.merge(self._window)
        self._window = Tally()
        return self._epoch_sums.reduced(parts.backend, "epoch")

    def run_steps(self, batches: Iterable[Batch], epoch: int) -> None:
        """Takes the steps that the batches make, up to the last step of the run; collective."""
        parts = self._parts
        began_s = time.monotonic() - self._seconds
        parts.progress.enter("loading")
        for batch in batches:
            end = self._take_pass(batch)
            if end is None:
                parts.progress.enter("loading")
                continue
            parts.progress.enter("agreement")
            self._consumed = batch.consumed
            self._seconds = max(1e-9, time.monotonic() - began_s)
            if self._step % parts.metrics_every_steps == 0 or self._step == parts.length.steps:
                self._measure(epoch)
            if parts.observer:
                parts.observer.stepped(epoch + 1, self._step, self._samples / self._seconds)
            self._keep(end)
            parts.progress.tick(self._step)
            if self._step == parts.length.steps:
                break
        if parts.backend.device.type == "cuda":
            # What was launched is not yet done.
            torch.cuda.synchronize(parts.backend.device)
        self._seconds = time.monotonic() - began_s

    def _take_pass(self, batch: Batch) -> StepEnd | None:
        """A forward and a backward pass, and the step if it is the last of one; how that ended."""
        stepper = self._parts.stepper
        self._unreadable.add(batch.skipped)
        share = Share(batch.count, batch.global_count, batch.number, batch.num_passes)
        if share.number == 0:
            for group in stepper.replica.optimizer.param_groups:
                group["lr"] = self._parts.rate(stepper.step)
        stepper.begin(share)
        progress = self._parts.progress
        progress.enter("forward")
        loss, measured = self._forward.loss(batch)
        if measured:
            self._passes.append(measured)
        if self._parts.recorder:
            self._parts.recorder.passed(batch, loss)
        # DDP reduces inside the last backward pass, Horovod beside it.
        progress.enter("reduction" if stepper.replica.needs_backward and share.is_last else "backward")
        stepper.backward(loss, share)
        if not share.is_last:
            return None
        progress.enter("reduction")
        end = stepper.end()
        self._end_step(end)
        return end

    def _end_step(self, end: StepEnd) -> None:
        self._step = self._parts.stepper.step
        self._norm = end.norm
        passes, self._passes = self._passes, []
        if self._parts.recorder:
            self._parts.recorder.stepped(end)
        if end.skipped:
            if self._parts.observer and end.total:
                self._parts.observer.noted(f"step {self._step} left out on all ranks: {end.skipped}")
            return
        for measured in passes:
            self._window.add(*measured)
        self._samples += round(end.total)

    def _keep(
        self, end: StepEnd | None = None, *, is_epoch_end: bool = False, measured: Means | None = None
    ) -> None:
        """Saves where it is time to, and ends a run that was asked to end; collective."""
        parts, keeper = self._parts, self._parts.keeper
        if keeper is None:
            return
        is_asked, has_failed = (end.votes if end else ()) or (0, 0)
        if has_failed:
            keeper.heed()
        at = Position(self._step, self._epoch, self._consumed)
        if is_asked or keeper.is_due(at, is_epoch_end=is_epoch_end):
            self.save(measured)
        if is_asked:
            keeper.finish(must_stand=True)
            self._end_profile()
            raise Preempted(self._step, parts.watch.reason)

    def save(self, measured: Means | None = None) -> None:
        """Begins to save where the run is now; collective."""
        parts = self._parts
        assert parts.keeper
        parts.progress.extend()
        values = (
            {"validation_loss": measured.loss, "validation_accuracy": measured.accuracy} if measured else {}
        )
        parts.keeper.save(
            Position(self._step, self._epoch, self._consumed),
            self.state,
            {
                "random": random_state(parts.backend.device),
                "epoch_sums": self._epoch_sums.values(),
                "window": self._window.values(),
            },
            finite(values),
        )

    def save_last(self, outcome: Outcome) -> int | None:
        """Saves the end of the run and waits until it is on the disk; collective.

        Returns:
            The step of the newest checkpoint that stands, on rank 0.
        """
        parts = self._parts
        assert parts.keeper
        self.save(outcome.validation)
        parts.keeper.finish()
        newest = parts.keeper.newest_step
        if parts.observer and newest != self._step:
            of = "there is none" if newest is None else f"the newest is of step {newest}"
            parts.observer.noted(f"the end of the run, step {self._step}, has no checkpoint: {of}")
        return newest

    def _resume(self, resumed: Resumed) -> None:
        """Takes up what ``save`` kept; model and optimizer have theirs already."""
        own, shared, stepper = resumed.own, resumed.shared, self._parts.stepper
        self._samples, self._seconds = shared["samples"], shared["seconds"]
        self._epoch_sums, self._window = Tally.of(own["epoch_sums"]), Tally.of(own["window"])
        stepper.num_skipped = shared["num_skipped"]
        if stepper.scaler.is_enabled() and shared["scaler"]:
            stepper.scaler.load_state_dict(dict(shared["scaler"]))
        if "random" in own:
            restore_random_state(own["random"], self._parts.backend.device)

    def _measure(self, epoch: int) -> None:
        """Agrees on the loss since the last time and records it."""
        means = self._window.reduced(self._parts.backend, "window")
        self._epoch_sums.merge(self._window)
        self._window = Tally()
        if self._parts.observer:
            values = {
                "loss": means.loss,
                "accuracy": means.accuracy,
                "lr": self._parts.rate(self._step - 1),
                "samples_per_s": self._samples / self._seconds,
            }
            if self._norm is not None:
                values["gradient_norm"] = self._norm
            self._parts.observer.measured(epoch + 1, self._step, values)

    @torch.no_grad()
    def evaluate(self) -> tuple[Means, dict[str, Value]]:
        """Loss, accuracy and the job's metrics over every held-out sample, each counted once; collective.

        Raises:
            Preempted: The run was asked to end; it goes on with this evaluation.
        """
        parts, tally = self._parts, Tally()
        module = parts.stepper.replica.module
        parts.backend.agree_buffers(module)
        module.eval()
        parts.evaluation.reset()
        batches = self._asking.begun(parts.validation, 0)
        for batch in self._asking.between(batches, self._step):
            self._unreadable.add(batch.skipped)
            if batch.count:
                outputs = module(batch.inputs.to(parts.backend.device, non_blocking=True))
                loss, num_right = classify(outputs, batch.targets, parts.backend.device)
                tally.add(loss, num_right, batch.count)
                parts.evaluation.update(outputs, batch.targets.to(outputs.device))
        module.train()
        return tally.reduced(parts.backend, "validation"), parts.evaluation.reduced(parts.backend)

    def close(self) -> None:
        """Ends the loaders' processes and closes the record, also of a run that failed."""
        self._parts.train.close()
        self._parts.validation.close()
        if self._parts.keeper:
            self._parts.keeper.close()
        if self._parts.observer:
            self._parts.observer.close()

    def finish(self, result: dict[str, Any]) -> None:
        """Records the result; on rank 0."""
        if self._parts.observer:
            self._parts.observer.finished(result)

    def state(self) -> dict[str, Any]:
        """What rank 0 saves for all."""
        stepper = self._parts.stepper
        return {
            "model": stepper.replica.module.state_dict(),
            "optimizer": stepper.replica.optimizer.state_dict(),
            "scaler": stepper.scaler.state_dict(),
            "samples": self._samples,
            "seconds": self._seconds,
            "num_skipped": stepper.num_skipped,
            "order": dict(self._parts.order),
        }

"""The script API: what a user's own training loop needs to run on many ranks.

``hvdtrain.start()`` gives a ``Run``. It works unchanged on one process and under ``hvdtrain run``, mpirun,
horovodrun, srun and torchrun.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from hvdtrain.backends.base import Backend, Reduction
from hvdtrain.data.partition import Tail
from hvdtrain.errors import HvdtrainError, InputError
from hvdtrain.train.ending import end_rank
from hvdtrain.train.feeding import READS_EVERYTHING, Loader, OwnLoader, Pulse, reads_everything
from hvdtrain.train.feeds import Feed, open_feed, order_of
from hvdtrain.train.handed import check_batches, check_feed, check_handed, check_pair
from hvdtrain.train.matching import Place
from hvdtrain.train.own_steps import OwnSteps
from hvdtrain.train.progress import Progress
from hvdtrain.train.randomness import seed_everything
from hvdtrain.train.resumable import Resumable
from hvdtrain.train.script_profile import NO_DIARY, Diary
from hvdtrain.train.settings import Settings as Settings
from hvdtrain.train.step import Share, StepEnd, Stepper, StepRules, autocast
from hvdtrain.train.sync_batchnorm import Aside, synchronise_batchnorm
from hvdtrain.train.waiting import END, Waiting


class Run(Resumable):
    """One rank's side of a run. All ranks call its methods in the same order.

    Attributes:
        rank: This process's number, 0 to ``size - 1``.
        size: Number of ranks.
        local_rank: This process's number on its host.
        device: Where this rank computes.
        backend_name: ``horovod``, ``ddp`` or ``single``.
        logger: Speaks on rank 0; warnings and errors on all ranks.
        epoch: The epoch that ``epochs`` is in, from 0; None outside of it.
    """

    def __init__(
        self,
        engine: Backend,
        waiting: Waiting,
        logger: logging.Logger,
        settings: Settings,
        closed: Callable[[Run], None],
        diary: Diary = NO_DIARY,
    ) -> None:
        super().__init__(engine, waiting, logger, settings)
        self._closed, self.diary, self._aside = closed, diary, Aside()
        self._progress = Progress(self._backend, logger)
        self._pulse = Pulse(self._begin, self._quiet, self._course, self._end, diary.asked)
        self._num_taken = 0
        self._own_steps = OwnSteps()

    def distribute(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        on_nan: str = "stop",
        reduction: Reduction | None = None,
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Makes the model equal to rank 0's on all ranks and its optimizer one of the whole launch.

        Call it once for each optimizer. What it returns takes the place of what was given.

        Args:
            model: It is moved to ``device``.
            optimizer: Over the model's parameters.
            clip_norm: Largest 2-norm of the mean gradient.
            clip_value: Largest size of an element of the mean gradient.
            on_nan: What a loss that is no finite number on any rank does: ``stop`` or ``skip`` the step.
            reduction: How gradients cross ranks, where it is not the plain mean.

        Raises:
            InputError: The engine cannot carry it, or ranks hold different parameters.
        """
        self._check_open()
        check_pair(model, optimizer, self._own_steps.known)
        model.to(self.device)
        number = len(self._steppers)
        given = reduction or Reduction(some_unused=True)
        prefix = f"model{number}." if number else ""
        replica = self._backend.distribute(
            model, optimizer, Reduction(given.compression, given.kind, given.some_unused, prefix)
        )
        rules = StepRules(clip_norm, clip_value, on_nan, self._settings.precision)
        stepper = self.diary.stepper(self._backend, replica, rules, prefix)
        stepper.place = Place(self._backend, lambda: self._num_taken)
        stepper.working = self._waiting.working
        self._steppers[id(replica.optimizer)] = stepper
        self._own_steps.refuse(optimizer, replica.optimizer)
        if not number:
            seed_everything(self._settings.seed + 1 + self.rank)  # a random stream of its own
        return replica.model, replica.optimizer

    def loader(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        shuffle: bool = True,
        tail: Tail = "weight",
        workers: int = 0,
        train: bool = True,
    ) -> Loader:
        """Batches of this rank's part of a data set; collective.

        Args:
            dataset: The same on all ranks. A method ``collate`` of it replaces PyTorch's. The items of an
                ``IterableDataset`` are split over ranks and workers, see ``StreamLoader``.
            batch_size: Samples per pass on each rank.
            shuffle: A new order in each epoch; an ``IterableDataset`` keeps its own.
            tail: The short last step: ``weight``, ``pad`` or ``drop``, see ``Partition``.
            workers: Processes that read; 0 reads in this one.
            train: False for evaluation: each sample once, no step, no sample that does not count.

        Raises:
            InputError: The data sets of the ranks differ in length, or hold too little.
        """
        self._check_open()
        check_feed(dataset, shuffle, workers)
        asked = Feed(
            batch_size=batch_size,
            accumulate=self._settings.accumulate if train else 1,
            tail=tail if train else "weight",
            shuffle=shuffle and train,
            workers=workers,
            seed=self._settings.seed,
            train=train,
        )
        with self._waiting.call("run.loader"):
            batches = open_feed(dataset, asked, self._backend, self.logger)
        order = order_of(batches, asked, self.size)
        loader = Loader(batches, self._backend, self._pulse, train=train, order=order)
        self._loaders.append(loader)
        return loader

    @property
    def is_filler(self) -> bool:
        """Whether the batch in hand does not count: this rank has no sample left for the step."""
        return self._share is not None and not self._share.weight

    def progress(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches, with a line about them every few seconds on rank 0; collective.

        Takes what ``loader`` gave, or any loader of the user's own: it must give equally many batches on all
        ranks, which is checked.
        """
        if not isinstance(batches, Loader):
            check_batches(batches)
            if self.size > 1 and reads_everything(batches):
                self.logger.warning(READS_EVERYTHING)
            batches = OwnLoader(batches, self._backend, self._pulse, self._settings.accumulate)
        yield from self._progress.watch(batches, self.epoch, self._course.num_epochs)

    def step(
        self, loss: torch.Tensor, optimizer: torch.optim.Optimizer, *, weight: float | None = None
    ) -> StepEnd | None:
        """Backward pass, reduction, clipping and the optimizer's step, as one; collective.

        There is nothing else to call: gradients are cleared where a step begins. The gradient is the mean
        over all samples that the ranks' losses are means of.

        Args:
            loss: The mean over this rank's batch, a scalar.
            optimizer: What ``distribute`` returned.
            weight: What the loss is a mean over, where that is not the samples: its number of tokens.

        Returns:
            How the step ended; None after a pass that is not the last of its step.

        Raises:
            TrainingError: The loss or the gradient is no finite number, and the rule is ``stop``.
        """
        self._check_open()
        stepper = self._steppers.get(id(optimizer))
        if stepper is None:
            raise InputError(
                f"run.step got a {type(optimizer).__name__} that run.distribute did not return",
                do="write: model, optimizer = run.distribute(model, optimizer)",
            )
        check_handed(loss, weight)
        share = self._share_of(weight)
        if share.num_passes > 1 and id(optimizer) in self._stepped:
            raise InputError(
                "run.step was called twice for one batch, with one optimizer and accumulate above 1",
                do="add the losses up and call it once",
            )
        self._stepped.add(id(optimizer))
        self._course.passed()
        with self._waiting.call("run.step"), self._own_steps.allowed():
            end = self._take_step(stepper, loss, share)
        self._waiting.stepped()
        return end

    def _take_step(self, stepper: Stepper, loss: torch.Tensor, share: Share) -> StepEnd | None:
        try:
            stepper.backward(loss, share, alone=len(self._steppers) == 1)
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            raise InputError(
                "this loss went through a backward pass before",
                do="leave out loss.backward(): run.step makes the backward pass, and once for each loss",
            ) from None
        self._progress.lost(loss, share, stepper)
        if not share.is_last:
            return None
        end = stepper.end()
        self._course.stepped(stepper)
        self._progress.stepped(stepper, end)
        self._heed(end)
        if end.skipped:
            reason = end.skipped if end.total else "their weights are all zero"
            self.logger.info("step %d left out on all ranks: %s", stepper.step, reason)
        return end

    def autocast(self) -> Any:
        """What a forward pass of the run's precision stands in: ``with run.autocast():``."""
        return autocast(self.device, self._settings.precision)

    def sync_batchnorm(self, model: nn.Module) -> nn.Module:
        """Makes batch norm layers normalise over the batch of all ranks; before ``distribute``."""
        self._check_open()
        return synchronise_batchnorm(model, self._backend)

    def close(self) -> None:
        """Ends loaders and engine; no other method may follow."""
        if not self._is_open:
            return
        self._is_open = False
        with self._waiting.at_end():
            self._meet(END)  # first: nothing below may answer a rank that is elsewhere
            self._end_checkpoints()
            self._closed(self)
            for loader in self._loaders:
                loader.close()
            self._backend.close()
        self._waiting.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not (isinstance(error, SystemExit) and error.code in (None, 0)):
            if self.size > 1 or isinstance(error, HvdtrainError):
                self._waiting.forget_end()
                end_rank(error, self._backend.world)
            return
        try:
            self.close()
        except HvdtrainError as late:  # the last save failed
            end_rank(late, self._backend.world)

    def _begin(self, share: Share, number: int) -> None:
        self._aside.end()
        self._share, self._stepped = share, set()
        self._num_taken = number
        for stepper in self._steppers.values():
            stepper.begin(share)
            if not share.weight:
                self._aside.add(stepper.replica.model)

    def _end(self) -> None:
        """A loop over batches is over: what follows knows nothing of its last one."""
        self._aside.end()
        self._share, self._num_taken = None, 0
        for stepper in self._steppers.values():
            stepper.begin(Share(1.0, None))

    def _quiet(self) -> None:
        """Evaluation begins: all ranks use rank 0's running statistics."""
        for stepper in self._steppers.values():
            self._backend.agree_buffers(stepper.replica.module)

    def _share_of(self, weight: float | None) -> Share:
        share = self._share
        if share is None:
            # Outside of a loader nothing is known of the batch.
            return Share(1.0 if weight is None else weight, float(self.size) if weight is None else None)
        if weight is None:
            return share
        return Share(weight if share.weight else 0.0, None, share.number, share.num_passes)

"""Trains while ranks come and go, without a new start: a commit to memory takes a checkpoint's place.

Each world that lasts for a while is one call of ``run_rank``. All ranks keep the last commit, so that the
oldest one, which is rank 0 of the next world, hands it on, whoever is gone. From there everything is as in
a run that goes on from a checkpoint under another number of ranks: ``resuming`` has the rules.
"""

from __future__ import annotations

import copy
import gc
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hvdtrain.backends.base import Backend
from hvdtrain.backends.choose import choose_backend
from hvdtrain.config import CheckpointConfig, Job
from hvdtrain.errors import InputError
from hvdtrain.topology.environ import World, find_world
from hvdtrain.train.build import Lookouts, build_parts, tell_of, trained_names
from hvdtrain.train.checkpoint import Snapshot
from hvdtrain.train.environment import prepare_environment
from hvdtrain.train.keeper import Keeper, Tell
from hvdtrain.train.launching import COMMIT_STEPS, DEFAULT_COMMIT_STEPS, RUN_DIR
from hvdtrain.train.observe import Emit
from hvdtrain.train.rank import OpenRun, relay, run_program, run_rank, watch_of
from hvdtrain.train.resuming import Resumed, hand_out, resume, take_in
from hvdtrain.train.rundir import RunDirectory
from hvdtrain.train.schedule import Position
from hvdtrain.train.store import stored_in
from hvdtrain.train.trainer import Trainer


@dataclass
class Memory:
    """What this rank committed last.

    Attributes:
        at: How far the run was; None before the first commit.
        state: As a checkpoint holds it.
    """

    at: Position | None = None
    state: dict[str, Any] = field(default_factory=dict)
    _snapshot: Snapshot = field(default_factory=Snapshot, repr=False)

    def commit(self, at: Position, state: Mapping[str, Any], ranks: list[Mapping[str, Any]]) -> None:
        """Keeps a copy of a state; the one before is lost.

        Args:
            at: How far the run is.
            state: What rank 0 would save for all; here each rank keeps it.
            ranks: What each rank holds for itself.
        """
        self.at = None  # half of a copy is none
        self.state = {**self._snapshot.take(state), "ranks": ranks}
        self.at = at

    def restore(
        self,
        backend: Backend,
        run: RunDirectory | None,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        order: Mapping[str, int],
    ) -> Resumed | None:
        """As ``resume``, from rank 0's memory; from its disk where that holds more; collective."""
        if backend.broadcast(run is not None and self._is_behind(run)):
            return resume(backend, run, model, optimizer, order)
        found: dict[str, Any] | str | None = None
        if run is not None:
            try:
                found = self._found(model, optimizer, order, backend.size)
            except InputError as error:
                found = str(error)
        return hand_out(backend, found)

    def _is_behind(self, run: RunDirectory) -> bool:
        newest = stored_in(run.checkpoints)
        return self.at is None or bool(newest and newest[0].step > self.at.step)

    def _found(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, order: Mapping[str, int], size: int
    ) -> dict[str, Any]:
        assert self.at is not None
        # An optimizer takes over the tensors that it loads, and would go on to change them.
        kept = {**self.state, **asdict(self.at), "optimizer": copy.deepcopy(self.state["optimizer"])}
        notes = take_in("the last commit", kept, model, optimizer, order)
        num_before = len(kept["ranks"])
        notes.append(
            f"going on from step {self.at.step}, committed in memory by {num_before} rank(s), with {size}"
        )
        return {**kept, "notes": notes}


class ElasticKeeper(Keeper):
    """Keeps checkpoints, and commits to memory besides.

    Args:
        backend: How bytes move.
        config: The job's ``checkpoint`` section.
        folder: The run's ``checkpoints`` folder on rank 0, None elsewhere.
        tell: Tells the user something, on rank 0.
        commits: What is committed, and when.
    """

    def __init__(
        self, backend: Backend, config: CheckpointConfig, folder: Path | None, tell: Tell, commits: Commits
    ) -> None:
        super().__init__(backend, config, folder, tell, trained_names(commits.module))
        self._commits = commits
        self._memory_only: Position | None = None

    def is_due(self, at: Position, *, is_epoch_end: bool) -> bool:
        """Whether to save here, be it to memory only."""
        is_saved = super().is_due(at, is_epoch_end=is_epoch_end)
        is_committed = is_epoch_end or at.step % self._commits.every_steps == 0
        self._memory_only = at if is_committed and not is_saved else None
        return is_saved or is_committed

    def save(
        self,
        at: Position,
        state: Callable[[], Mapping[str, Any]],
        own: Mapping[str, Any],
        measured: Mapping[str, float] | None = None,
    ) -> None:
        """Commits, saves unless only a commit is due, and lets ranks go and come; collective."""
        commits = self._commits
        # Running statistics are each rank's own, and those of any may be needed: rank 0's are what is saved.
        self._backend.agree_buffers(commits.module)
        commits.memory.commit(at, state(), self._backend.gather(dict(own)))
        is_memory_only, self._memory_only = self._memory_only == at, None
        if not is_memory_only:
            super().save(at, state, own, measured)
        commits.look()


@dataclass(frozen=True)
class Commits:
    """What an ``ElasticKeeper`` commits.

    Attributes:
        memory: Where to.
        module: The model, whose buffers all ranks are to share.
        every_steps: Steps between two commits; there is one at the end of each epoch and with each save too.
        look: Lets ranks go and come, which ends this world; collective.
    """

    memory: Memory
    module: nn.Module
    every_steps: int
    look: Callable[[], None]


def train_elastically(job: Job, open_run: OpenRun, emit: Emit, every_steps: int) -> dict[str, Any]:
    """Trains as one rank of a launch by Horovod Elastic; returns the result document.

    Args:
        job: The job, the same on all ranks.
        open_run: Gives rank 0's run directory and None elsewhere, once for each world; collective.
        emit: Shows an event to the user; called on rank 0 only.
        every_steps: Steps between two commits.

    Raises:
        InputError: The job's engine is another one.
    """
    name, _ = choose_backend(job.backend, 2)
    if name != "horovod":
        raise InputError(f"backend: {name} under Horovod Elastic", legal="horovod")
    # A host that vanished is Horovod's to notice, after HOROVOD_GLOO_TIMEOUT_SECONDS.
    stall = job.stall.model_copy(update={"step_s": job.stall.step_s or job.stall.most_s})
    job = job.model_copy(update={"stall": stall})
    # Before Horovod starts, which has to be up to know who is there.
    prepare_environment(job.tuning, find_world(os.environ), "horovod")
    from hvdtrain.backends.horovod_elastic import elastic_world, run_elastically

    memory, watch = Memory(), watch_of(job)

    def live(look: Callable[[], None]) -> dict[str, Any]:
        gc.collect()  # what the world before has left goes before the same is built again
        build = partial(_build, memory, every_steps, look)
        return run_rank(job, elastic_world(), open_run, emit, build, watch)

    return run_elastically(live)


def commit_steps(env: Mapping[str, str]) -> int:
    """Steps between two commits, as the launcher tells them."""
    text = env.get(COMMIT_STEPS) or str(DEFAULT_COMMIT_STEPS)
    if not (text.isascii() and text.isdecimal() and 1 <= len(text) <= 9 and int(text)):
        raise InputError(f"{COMMIT_STEPS} is {text!r}", legal="a whole number of at least 1")
    return int(text)


def _build(
    memory: Memory,
    every_steps: int,
    look: Callable[[], None],
    job: Job,
    backend: Backend,
    run: RunDirectory | None,
    emit: Emit,
    lookouts: Lookouts,
) -> Trainer:
    parts = build_parts(job, backend, run, emit, memory.restore)
    commits = Commits(memory, parts.stepper.replica.module, every_steps, look)
    folder = run.checkpoints if run else None
    keeper = ElasticKeeper(backend, job.checkpoint, folder, tell_of(parts), commits)
    return Trainer(replace(parts, keeper=keeper, watch=lookouts.watch, progress=lookouts.progress))


def main(env: Mapping[str, str]) -> int:
    """The program of a rank that our launcher started by Horovod Elastic."""
    run = RunDirectory(Path(env[RUN_DIR]))  # the same in every world: rank 0 goes on to write in it

    def train(job: Job, _world: World) -> None:
        train_elastically(job, lambda backend, _: None if backend.rank else run, relay, commit_steps(env))

    return run_program(env, train)


if __name__ == "__main__":
    sys.exit(main(os.environ))

"""What a rank keeps of each step, for a comparison with the same steps on another number of ranks.

Rank 0 writes one folder (``RECORD_FACTS`` last): per step a JSON file of small facts and a file of tensors
per moment, each written when it comes up, so that no more than one copy of the model is held at a time.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hvdtrain.backends.base import Backend
from hvdtrain.data.batch import Batch
from hvdtrain.data.partition import Partition
from hvdtrain.train.gradients import total_norm
from hvdtrain.train.step import StepEnd, Stepper

RECORD_FACTS = "facts.json"
# A prime: folding does not add up the rows of a matrix of usual shape, which may well sum to zero.
FOLD = 127
_LARGEST_SEED = 2**32


def step_path(folder: Path, step: int, what: str) -> Path:
    """Where something of a step is kept; step 0 is before the first one.

    Args:
        folder: The record.
        step: From 0.
        what: ``facts`` (JSON) or tensors: ``reduced``, ``clipped``, ``parameters``, ``buffers``, ``local``.
    """
    return folder / f"step-{step}.{'facts.json' if what == 'facts' else f'{what}.pt'}"


def fold(values: torch.Tensor) -> torch.Tensor:
    """A linear sketch of a tensor: element i is the sum of its elements i, i+FOLD, ...; shape (FOLD,).

    What holds of sums and multiples of tensors holds of their sketches, which are small enough to keep for
    each rank.
    """
    flat = values.detach().to(torch.float64).flatten()
    return nn.functional.pad(flat, (0, -len(flat) % FOLD)).reshape(-1, FOLD).sum(dim=0)


@dataclass
class RankShare:
    """What one rank did in one step.

    Attributes:
        count: Samples that its loss is the mean of.
        loss_sum: Sum of the samples' losses.
        indices: The samples that its partition names.
        contents: A checksum of the values of each sample that it read, in order.
        skipped: Samples that could not be read and were left out.
        checksum: Of its parameters' bits after the step: equal on all ranks, or they are no replicas.
    """

    count: int = 0
    loss_sum: float = 0.0
    indices: tuple[int, ...] = ()
    contents: list[int] = field(default_factory=list)
    skipped: int = 0
    checksum: int = 0


class Recorder:
    """Records the steps of one run; made on all ranks, after the replicas were made equal.

    Args:
        backend: The engine.
        stepper: Of the model whose steps are recorded; the recorder listens to it.
        partition: Of the training data, read from its first epoch on.
        folder: An empty folder; used on rank 0 only.
    """

    def __init__(self, backend: Backend, stepper: Stepper, partition: Partition, folder: Path) -> None:
        self._backend, self._stepper, self._folder = backend, stepper, folder
        replica = stepper.replica
        trained = set(replica.trained)
        named: dict[str, torch.Tensor] = {
            name: value for name, value in replica.module.named_parameters() if value in trained
        }
        self._trained = named
        self._hooked = [name for name, value in named.items() if getattr(value, "_backward_hooks", None)]
        self._local = _LocalGradients(list(named.values()))
        self._steps = _indices(partition, backend.rank)
        self._share = RankShare()
        self._norm = 0.0
        self._inputs: torch.Tensor | None = None
        stepper.watch = self._watch
        self._write_state(0)

    def passed(self, batch: Batch, loss: torch.Tensor | None) -> None:
        """A forward pass is done, its backward pass is not."""
        if batch.number == 0:
            self._share = RankShare(indices=next(self._steps))
            self._local.clear()
        self._share.skipped += len(batch.skipped)
        if not batch.count:
            return
        if self._inputs is None and isinstance(batch.inputs, torch.Tensor):
            self._inputs = batch.inputs.clone()
        self._share.count += batch.count
        self._share.loss_sum += batch.count * float(loss.detach()) if loss is not None else 0.0
        self._share.contents += _checksums(batch)

    def _watch(self, moment: str) -> None:
        """Keeps the gradients as reduced, and as clipped where that changed them."""
        norm = total_norm(self._stepper.replica.trained)
        if moment == "reduced" or norm != self._norm:
            self._write(moment, {name: _dense(value.grad) for name, value in self._trained.items()})
        self._norm = norm

    def stepped(self, end: StepEnd) -> None:
        """A step is done; collective."""
        replica, step = self._stepper.replica, self._stepper.step
        share = self._share
        share.checksum = _checksum(replica.module.parameters())
        shares, local = zip(*self._backend.gather((share, self._local.stacked())), strict=True)
        if self._backend.rank:
            return
        self._write("local", {name: torch.stack([one[name] for one in local]) for name in local[0]})
        self._write_state(step)
        total = sum(one.count for one in shares)
        facts = {
            "step": step,
            "skipped": end.skipped,
            "lr": [float(group["lr"]) for group in replica.optimizer.param_groups],
            "loss": sum(one.loss_sum for one in shares) / max(1, total),
            "ranks": [asdict(one) for one in shares],
            "state": _state_norms(replica.optimizer, list(self._trained.values())),
        }
        step_path(self._folder, step, "facts").write_text(json.dumps(facts), "utf-8")

    def finish(self, facts: Mapping[str, Any], seed: int) -> None:
        """Looks how the model's training pass behaves, and writes that the record is complete; on rank 0.

        Args:
            facts: What else is to be kept.
            seed: Of the draws of a model that makes some.
        """
        from hvdtrain.train.probes import probe_forward

        if self._backend.rank:
            return
        module = self._stepper.replica.module
        behaviour = probe_forward(module, self._inputs, self._backend.device, seed % _LARGEST_SEED)
        document = {
            "size": self._backend.size,
            "backend": self._backend.name,
            "steps": self._stepper.step,
            "parameters": list(self._trained),
            "hooked": self._hooked,
            **asdict(behaviour),
            **facts,
        }
        (self._folder / RECORD_FACTS).write_text(json.dumps(document), "utf-8")

    def _write_state(self, step: int) -> None:
        if self._backend.rank == 0:
            module = self._stepper.replica.module
            self._save(step, "parameters", dict(module.named_parameters()))
            self._save(step, "buffers", dict(module.named_buffers()))

    def _write(self, what: str, tensors: Mapping[str, torch.Tensor]) -> None:
        if self._backend.rank == 0:
            self._save(self._stepper.step, what, tensors)

    def _save(self, step: int, what: str, tensors: Mapping[str, torch.Tensor]) -> None:
        plain = {name: value.detach().to("cpu").contiguous() for name, value in tensors.items()}
        torch.save(plain, step_path(self._folder, step, what))


class _LocalGradients:
    """This rank's own gradients, seen after the user's hooks and before the reduction."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self._seen: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        self._parameters = parameters
        self._numbers = {value: number for number, value in enumerate(parameters)}
        for value in parameters:
            value.register_post_accumulate_grad_hook(self._see)  # type: ignore[no-untyped-call]

    def clear(self) -> None:
        """A step begins."""
        self._seen.clear()

    def _see(self, parameter: torch.Tensor) -> None:
        gradient = _dense(parameter.grad)
        facts = gradient.double().norm(), gradient.abs().max().double(), fold(gradient)
        self._seen[self._numbers[parameter]] = facts

    def stacked(self) -> dict[str, torch.Tensor]:
        """Norms (P,), largest sizes of an element (P,) and folds (P, FOLD) of the P parameters' gradients."""
        zero = torch.zeros((), dtype=torch.float64)
        nothing = zero, zero, torch.zeros(FOLD, dtype=torch.float64)
        rows = [self._seen.get(number, nothing) for number in range(len(self._parameters))]
        names = ("norms", "largest", "folds")
        return {name: torch.stack([row[i].cpu() for row in rows]) for i, name in enumerate(names)}


def _indices(partition: Partition, rank: int) -> Iterator[tuple[int, ...]]:
    for epoch in count():
        for step in partition.steps(rank, epoch):
            yield step.indices


def _dense(gradient: torch.Tensor | None) -> torch.Tensor:
    assert gradient is not None, "called after the backward pass"
    return gradient.detach().to_dense() if gradient.is_sparse else gradient.detach()


def _checksums(batch: Batch) -> list[int]:
    """One of each sample's values: of all tensors of the batch whose first dimension is the samples'."""
    leaves = [leaf for leaf in _leaves((batch.inputs, batch.targets)) if len(leaf) == batch.count]
    return [_checksum([leaf[row] for leaf in leaves]) for row in range(batch.count)]


def _checksum(parts: Iterable[torch.Tensor]) -> int:
    value = 0
    for part in parts:
        raw = part.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        value = zlib.crc32(raw.numpy().tobytes(), value)
    return value


def _leaves(data: Any) -> Iterator[torch.Tensor]:
    if isinstance(data, torch.Tensor):
        yield from [data] if data.ndim else []
    elif isinstance(data, Mapping):
        yield from _leaves(tuple(data.values()))
    elif isinstance(data, list | tuple):
        for item in data:
            yield from _leaves(item)


def _state_norms(optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> dict[str, list[float]]:
    """2-norms of the optimizer's tensors by kind, such as ``exp_avg``, in the parameters' order."""
    norms: dict[str, list[float]] = {}
    for number, parameter in enumerate(parameters):
        for name, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                row = norms.setdefault(str(name), [0.0] * len(parameters))
                row[number] = float(value.detach().double().norm())
    return norms

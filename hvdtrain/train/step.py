"""One optimizer step whose gradient is that of the whole global batch.

What is exact here: the mean over the samples (or tokens) of all ranks and all passes of the step, also
where ranks hold different numbers of them or none at all; clipping after the reduction; one decision
of all ranks about a step whose loss or gradient is no finite number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch

from hvdtrain.backends.base import Backend, Replica
from hvdtrain.errors import InputError, TrainingError
from hvdtrain.train.gradients import clamp, scale, total_norm


@dataclass(frozen=True)
class StepRules:
    """What becomes of gradients between the backward pass and the step; see the job file's keys.

    Attributes:
        clip_norm: Largest 2-norm of all gradients together, None for no limit.
        clip_value: Largest size of an element, None for no limit.
        on_nan: ``stop`` or ``skip``.
        precision: ``fp32``, ``bf16`` or ``fp16``, of the forward pass.
    """

    clip_norm: float | None = None
    clip_value: float | None = None
    on_nan: str = "stop"
    precision: str = "fp32"

    def check(self) -> None:
        """Refuses what is out of range.

        Raises:
            InputError: With the name of the rule.
        """
        for name in ("clip_norm", "clip_value"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
                raise InputError(f"{name} is {value!r}", legal="a finite number above 0, or None")
        if self.clip_norm is not None and self.clip_value is not None:
            raise InputError("clip_norm and clip_value cannot be combined", do="choose one")
        for name, legal in (("on_nan", ("stop", "skip")), ("precision", ("fp32", "bf16", "fp16"))):
            if getattr(self, name) not in legal:
                raise InputError(f"{name} is {getattr(self, name)!r}", legal=", ".join(legal))


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank's pass contributes to a step.

    Attributes:
        weight: Samples (or tokens) that the rank's loss is the mean of; 0 where it has none.
        total: The sum of the weights of all ranks and all passes of the step; None where that is
            unknown until the ranks add up what they hold in this pass.
        number: This pass in the step, from 0.
        num_passes: Passes of the step, the same on all ranks.
    """

    weight: float
    total: float | None
    number: int = 0
    num_passes: int = 1

    @property
    def is_last(self) -> bool:
        """Whether the step ends with this pass."""
        return self.number == self.num_passes - 1


@dataclass(frozen=True, slots=True)
class StepEnd:
    """What a finished step was.

    Attributes:
        norm: 2-norm of the reduced gradient before clipping, where it was needed.
        skipped: Why the optimizer did not step; empty where it did.
        total: Samples (or tokens) of the step over all ranks.
        votes: How many ranks said yes to each question of ``Stepper.ask``.
    """

    norm: float | None = None
    skipped: str = ""
    total: float = 0.0
    votes: tuple[int, ...] = ()


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """What a forward pass of that precision runs in."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16 if precision == "bf16" else torch.float16)


class Stepper:
    """Takes the steps of one model and its optimizer.

    Per pass: ``begin`` before the forward pass, then ``backward``; after the last pass of a step ``end``.

    Args:
        backend: How bytes move.
        replica: The model and its optimizer, distributed.
        rules: What becomes of the gradients.
        name: Different for each model that is trained at once, the same on all ranks.
    """

    def __init__(self, backend: Backend, replica: Replica, rules: StepRules, name: str = "") -> None:
        rules.check()
        if not replica.has_gradients and rules != StepRules():
            raise InputError(
                "Adasum reduces the optimizer's steps, not gradients: it cannot be combined with clipping, "
                "on_nan skip or another precision than fp32",
                do="set gradients.reduce to mean",
            )
        self.replica = replica
        self._backend, self._rules, self._name = backend, rules, name
        self._gathered = _Weights(backend, f"{name}weight")
        self._bad: list[torch.Tensor] = []
        self._counted: Callable[[], torch.Tensor] = lambda: torch.zeros(1)
        is_scaled = rules.precision == "fp16"
        self.scaler = torch.amp.GradScaler(backend.device.type, enabled=is_scaled)
        self.step = 0
        self.num_skipped = 0
        # Asked on every rank in every step; how many said yes travels with the gradients.
        self.ask: tuple[Callable[[], bool], ...] = ()
        # Hears of a step's gradients once they are reduced, and again as the optimizer will see them.
        self.watch: Callable[[str], None] | None = None

    def begin(self, share: Share) -> None:
        """Before the forward pass."""
        self.replica.begin_pass(share.number == 0, share.is_last, share.num_passes)

    def backward(self, loss: torch.Tensor | None, share: Share, *, alone: bool = True) -> None:
        """Adds this pass's part to the gradients; collective in the last pass of a step.

        Args:
            loss: The mean over what ``share.weight`` counts; with weight 0 any loss of the model, whose
                backward pass then adds nothing, or None where the engine needs no backward pass.
            share: Whose part of the step it is.
            alone: Whether only this model's parameters are in the loss's graph; otherwise the
                gradients of others are left out.
        """
        if share.number == 0:
            self.replica.optimizer.zero_grad()
            self._gathered.clear()
            self._bad.clear()
        before, now = self._gathered.add(share)
        if before != now and before > 0:
            # Passes whose totals were not known: what is there was the mean over fewer samples.
            scale(self.replica.trained, before / now)
        if loss is not None and share.weight:
            self._bad.append(~torch.isfinite(loss.detach()))
        if share.is_last:
            self._counted = self._start_counting()
        if loss is None:
            return
        # The engine takes the mean over ranks; this factor, exactly 1 where all ranks hold equally many
        # and there is one pass, makes it the mean over samples.
        part = share.weight * self._backend.size
        factor = part / now if now else 0.0
        scaled = self.scaler.scale(loss if factor == 1.0 else loss * factor)
        inputs = None if alone else self.replica.trained
        scaled.backward(inputs=inputs)  # type: ignore[no-untyped-call]

    def end(self) -> StepEnd:
        """Reduces, clips and steps, or leaves the step out on all ranks; collective.

        Raises:
            TrainingError: The loss or the gradient is no finite number and the rule is ``stop``.
        """
        self.step += 1
        self.replica.finish()
        num_bad, *votes = self._counted().tolist()
        end = self._finish(bool(num_bad), self._gathered.total)
        return replace(end, votes=tuple(map(int, votes))) if votes else end

    def _finish(self, is_bad: bool, total: float) -> StepEnd:
        replica = self.replica
        if is_bad:
            return self._leave_out(self._told_loss(), total)
        if total == 0:
            # No rank has a sample. All of them know, so all of them leave this step out.
            replica.optimizer.zero_grad()
            return StepEnd(skipped="no rank has a sample", total=0)
        self.scaler.unscale_(replica.optimizer)
        self._tell("reduced")
        norm = total_norm(replica.trained) if self._needs_norm else None
        is_finite = norm is None or math.isfinite(norm)
        if is_finite:
            self._clip(norm)
            self._tell("clipped")
            replica.apply()
        if self.scaler.is_enabled():
            # The reduced gradients are equal on all ranks, so the scaler's choice is too.
            return self._end_scaled(norm, is_finite, total)
        return StepEnd(norm, total=total) if is_finite else self._leave_out(f"the gradient is {norm}", total)

    def _tell(self, moment: str) -> None:
        if self.watch:
            self.watch(moment)

    @property
    def _needs_norm(self) -> bool:
        rules = self._rules
        return rules.clip_norm is not None or rules.on_nan == "skip" or self.scaler.is_enabled()

    def _end_scaled(self, norm: float | None, is_finite: bool, total: float) -> StepEnd:
        loss_scale = self.scaler.get_scale()
        self.scaler.update()
        if is_finite:
            return StepEnd(norm, total=total)
        self.num_skipped += 1
        self.replica.optimizer.zero_grad()
        return StepEnd(norm, f"fp16 overflow at loss scale {loss_scale:g}", total)

    def _clip(self, norm: float | None) -> None:
        rules = self._rules
        if rules.clip_value is not None:
            clamp(self.replica.trained, rules.clip_value)
        elif rules.clip_norm is not None and norm is not None and norm > rules.clip_norm:
            scale(self.replica.trained, rules.clip_norm / norm)

    def _start_counting(self) -> Callable[[], torch.Tensor]:
        """Begins to count the ranks whose loss is no finite number, beside the gradients' reduction."""
        bad = torch.stack(self._bad).any() if self._bad else torch.zeros((), dtype=torch.bool)
        flags = bad.reshape(1).to(self._backend.device, torch.float32)
        if answers := [float(question()) for question in self.ask]:
            flags = torch.cat([flags, torch.tensor(answers, device=flags.device)])
        return self._backend.start_sum(flags, f"{self._name}bad")

    def _told_loss(self) -> str:
        own = bool(torch.stack(self._bad).any()) if self._bad else False
        ranks = [str(rank) for rank, is_bad in enumerate(self._backend.gather(own)) if is_bad]
        return f"the loss is no finite number on rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}"

    def _leave_out(self, reason: str, total: float) -> StepEnd:
        self.replica.optimizer.zero_grad()
        if self._rules.on_nan == "stop":
            raise TrainingError(
                f"step {self.step}: {reason}; lower the learning rate or clip the gradients, or leave "
                "such steps out with on_nan skip"
            )
        self.num_skipped += 1
        return StepEnd(skipped=reason, total=total)


class _Weights:
    """Adds up what the passes of a step hold on all ranks."""

    def __init__(self, backend: Backend, name: str) -> None:
        self._backend, self._name = backend, name
        self.total = 0.0

    def clear(self) -> None:
        """A step begins."""
        self.total = 0.0

    def add(self, share: Share) -> tuple[float, float]:
        """The sum before and with a pass; both the step's where that is known. Collective where not."""
        if share.total is not None:
            self.total = share.total
            return self.total, self.total
        before = self.total
        weights = torch.tensor([share.weight], dtype=torch.float64)
        self.total += float(self._backend.sum(weights, self._name).item())
        return before, self.total

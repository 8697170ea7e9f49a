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
from hvdtrain.data.agreement import name_ranks
from hvdtrain.errors import AgreedError, InputError
from hvdtrain.train.gradients import clamp, kept_out, scale, total_norm
from hvdtrain.train.matching import Place
from hvdtrain.train.rules import CURE
from hvdtrain.train.rules import StepRules as StepRules
from hvdtrain.train.weights import Share as Share
from hvdtrain.train.weights import Weights


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


# Steps between two looks at which parameters are trained: with many small ones a look costs some per cent.
_CHECK_EVERY = 20
# A loss scaler that begins at 2^16 needs 16 steps at most; what goes on beyond will not end by itself.
_MOST_IN_A_ROW = 100
_WEIGH = "look at the weights that run.step is given, or at the data: all of them were 0, on all ranks"


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
                "skipping of bad steps or another precision than fp32",
                do="set gradients.reduce to mean",
            )
        self.replica = replica
        self._backend, self._rules, self._name = backend, rules, name
        self._gathered = Weights(backend, f"{name}weight")
        self._bad: list[torch.Tensor] = []
        self._is_fresh = True
        self._own = 0.0
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._counted: Callable[[], torch.Tensor] = lambda: torch.zeros(1)
        is_scaled = rules.precision == "fp16"
        self.scaler = torch.amp.GradScaler(backend.device.type, enabled=is_scaled)
        self.step = self.num_skipped = self._num_in_a_row = 0
        # Asked on every rank in every step; how many said yes travels with the gradients.
        self.ask: tuple[Callable[[], bool], ...] = ()
        # Where this rank is in its loop, where the loops of the ranks may not match.
        self.place: Place | None = None
        # Entered while this rank steps by itself, once all gradients are there.
        self.working: Callable[[], AbstractContextManager[object]] = nullcontext
        # Hears of a step's gradients once they are reduced, and again as the optimizer will see them.
        self.watch: Callable[[str], None] | None = None

    def begin(self, share: Share) -> None:
        """Before the forward pass."""
        is_first = share.number == 0
        self.replica.begin_pass(is_first, share.is_last, share.num_passes)
        if is_first:
            if self.step % _CHECK_EVERY == 0:
                self.replica.check_trained()
            self._is_fresh = True
            if self._rules.on_nan == "skip":
                # Running statistics that the forward pass of a step that is left out would spoil.
                self._buffers = [(buffer, buffer.clone()) for buffer in self.replica.module.buffers()]

    def backward(self, loss: torch.Tensor | None, share: Share, *, alone: bool = True) -> None:
        """Adds this pass's part to the gradients; collective in the last pass of a step.

        Args:
            loss: The mean over what ``share.weight`` counts; with weight 0 any loss of the model, whose
                backward pass then adds nothing, or None where the engine needs no backward pass.
            share: Whose part of the step it is.
            alone: Whether only this model's parameters are in the loss's graph; otherwise the
                gradients of others are left out.
        """
        if self._is_fresh:
            self.replica.optimizer.zero_grad()
            self._gathered.clear()
            self._bad.clear()
            self._is_fresh, self._own = False, 0.0
        if self.place:
            self.place.passed()
        before, now = self._gathered.add(share)
        if loss is not None and share.weight:
            # NaN where the loss is no finite number, 0 elsewhere.
            self._bad.append(loss.detach() * 0)
        if share.is_last:
            # Before the gradients: behind the last of them it may wait for a cycle of its own, unhidden.
            self._counted = self._start_counting()
        factor = self._factor(share, before, now)
        if loss is not None:
            self._run_backward(loss, share, factor, alone)

    def _run_backward(self, loss: torch.Tensor, share: Share, factor: float, alone: bool) -> None:
        scaled = self.scaler.scale(loss if factor == 1.0 else loss * factor)
        inputs = None if alone else self.replica.trained
        # A loss over nothing may be 0/0, and NaN times 0 is NaN.
        with nullcontext() if share.weight else kept_out(self.replica.trained):
            scaled.backward(inputs=inputs)  # type: ignore[no-untyped-call]

    def _factor(self, share: Share, before: float, now: float) -> float:
        """What makes the engine's mean over ranks the mean over samples.

        It is exactly 1 where all ranks hold equally many and there is one pass. Adasum takes no mean: there
        each rank's own gradient is the mean over its own samples.
        """
        part = share.weight * self._backend.size
        if not self.replica.has_gradients:
            before, self._own = self._own, self._own + share.weight
            part, now = share.weight, self._own
        if before != now and before > 0 and now > 0:
            # Passes whose totals were not known: what is there was the mean over fewer samples.
            scale(self.replica.trained, before / now)
        return part / now if now else 0.0

    def end(self) -> StepEnd:
        """Reduces, clips and steps, or leaves the step out on all ranks; collective.

        Raises:
            TrainingError: The loss or the gradient is no finite number and the rule is ``stop``.
        """
        self.step += 1
        self._is_fresh = True
        self.replica.finish()
        bad, *votes = self._counted().tolist()
        if self.place:
            self.place.check(squares=votes.pop(), total=votes.pop())
        end = self._finish(math.isnan(bad), self._gathered.total)
        self._num_in_a_row = self._num_in_a_row + 1 if end.skipped else 0
        if self._num_in_a_row == _MOST_IN_A_ROW:
            cure = "lower the learning rate, or look at the data" if end.total else _WEIGH
            told = f"{_MOST_IN_A_ROW} steps in a row were left out, up to step {self.step}"
            raise AgreedError(f"{told}: {end.skipped}; {cure}")
        return replace(end, votes=tuple(map(int, votes))) if votes else end

    def _finish(self, is_bad: bool, total: float) -> StepEnd:
        replica = self.replica
        if is_bad:
            return self._leave_out(self._told_loss(), total)
        if total == 0:  # no rank has a sample; all of them know, so all leave this step out
            if not replica.has_gradients:
                replica.apply()  # of zeros, which its hooks have begun to reduce
            replica.optimizer.zero_grad()
            return StepEnd(skipped="no rank has a sample", total=0)
        self.scaler.unscale_(replica.optimizer)
        self._tell("reduced")
        norm = total_norm(replica.trained) if self._needs_norm else None
        is_finite = norm is None or math.isfinite(norm)
        if is_finite:
            self._clip(norm)
            self._tell("clipped")
            with self.working() if replica.has_gradients else nullcontext():  # Adasum waits in it
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
        """Begins to learn of losses that are no finite numbers, beside the gradients' reduction.

        The sum over ranks is NaN where one of them has such a loss, 0 elsewhere; behind it the answers to
        ``ask`` are counted, and where the ranks are in their loops is compared.
        """
        flags = torch.zeros(1 + len(self.ask) + 2 * bool(self.place), device=self._backend.device)
        for bad in self._bad:
            flags[0] += bad.reshape(())
        for number, question in enumerate(self.ask, 1):
            if question():
                flags[number] = 1
        if self.place:
            flags[-2], flags[-1] = self.place.marks()
        return self._backend.start_sum(flags, f"{self._name}bad")

    def _told_loss(self) -> str:
        own = any(map(math.isnan, self._bad))
        ranks = [rank for rank, is_bad in enumerate(self._backend.gather(own)) if is_bad]
        return f"the loss is no finite number on {name_ranks(ranks)}"

    def _leave_out(self, reason: str, total: float) -> StepEnd:
        if self._rules.on_nan == "stop":
            raise AgreedError(f"step {self.step}: {reason}; {CURE}")
        self.replica.optimizer.zero_grad()
        for buffer, before in self._buffers:
            buffer.copy_(before)
        self.num_skipped += 1
        return StepEnd(skipped=reason, total=total)

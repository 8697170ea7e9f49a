"""The learning rate as a pure function of how far a run is.

Positions are counted in epochs, not in steps: an epoch means the same under any number of ranks,
so a run that goes on with another global batch goes on at the same place of its curve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hvdtrain.config import ScheduleConfig

# Division leaves 2.9999999999999996 where the third drop is due; no step is as short as this, in epochs.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Pace:
    """How steps and samples translate into epochs, under the present world.

    Attributes:
        num_samples: Samples of an epoch.
        global_batch: Samples of a full step, all ranks together.
        drops_tail: Whether the short last step of an epoch does not take place.
    """

    num_samples: int
    global_batch: int
    drops_tail: bool = False

    @property
    def step_epochs(self) -> float:
        """Epochs that a full step takes, at most one."""
        return min(1.0, self.global_batch / self.num_samples)

    def num_steps(self, consumed: int = 0) -> int:
        """Steps from ``consumed`` used samples of an epoch to its end."""
        left = self.num_samples - consumed
        return left // self.global_batch if self.drops_tail else -(-left // self.global_batch)

    def epochs_done(self, epoch: int, consumed: int) -> float:
        """Epochs done at a position.

        Args:
            epoch: Whole epochs before it.
            consumed: Samples of the present epoch that were used.
        """
        return epoch + min(1.0, consumed / self.num_samples)

    def epochs_after(self, epoch: int, consumed: int, steps: int) -> float:
        """Epochs done when ``steps`` more steps have been taken from a position.

        As long as the batch stays the same, the end of a run has the same value, to the last bit,
        from every position of the run.
        """
        left = self.num_steps(consumed)
        if steps < left:
            return self.epochs_done(epoch, consumed + steps * self.global_batch)
        whole, more = divmod(steps - left, self.num_steps())
        return self.epochs_done(epoch + 1 + whole, more * self.global_batch)


def peak_rate(schedule: ScheduleConfig, lr: float, global_batch: int) -> float:
    """The rate at the top of the schedule.

    With k = ``global_batch / base_batch``: ``lr`` with scaling ``none``, ``k lr`` with ``linear``
    (Goyal et al. 2017, arXiv:1706.02677), ``sqrt(k) lr`` with ``sqrt`` (Krizhevsky 2014,
    arXiv:1404.5997).

    Args:
        schedule: The job's ``schedule``.
        lr: The job's ``optimizer.lr``.
        global_batch: Samples per step over all ranks.
    """
    if schedule.base_batch is None:
        return lr
    ratio = global_batch / schedule.base_batch
    return lr * (math.sqrt(ratio) if schedule.scaling == "sqrt" else ratio)


def rate_at(
    schedule: ScheduleConfig, peak: float, epochs_done: float, *, step_epochs: float, total_epochs: float
) -> float:
    """The rate of the step that begins when ``epochs_done`` epochs are done.

    With e = ``epochs_done``, W = ``warmup_epochs`` and f = ``final_fraction``: in warm-up, e < W,
    it is ``peak * min(1, (e + step_epochs) / W)``, a straight line whose first step already moves
    (Goyal et al. 2017, arXiv:1706.02677). After it, with t = (e - W) / (total_epochs - W):

    - constant: peak
    - cosine: f + (1 - f) * (1 + cos(pi t)) / 2 times peak (Loshchilov, Hutter, arXiv:1608.03983)
    - polynomial: f + (1 - f) * (1 - t) ** power times peak
    - step: step_factor ** floor((e - W) / schedule.step_epochs) times peak

    Args:
        schedule: The job's ``schedule``.
        peak: The rate of ``peak_rate``.
        epochs_done: Position, in epochs (``Pace.epochs_done``).
        step_epochs: Epochs that a step takes (``Pace.step_epochs``).
        total_epochs: Length of the run, in epochs.
    """
    past = epochs_done - schedule.warmup_epochs
    if past < -_ROUNDING:
        return peak * min(1.0, (epochs_done + step_epochs) / schedule.warmup_epochs)
    if schedule.name == "constant":
        return peak
    if schedule.name == "step":
        drops = math.floor(past / schedule.step_epochs + _ROUNDING)
        return float(peak * schedule.step_factor**drops)
    left = total_epochs - schedule.warmup_epochs
    done = min(1.0, max(0.0, past / left)) if left > 0 else 1.0
    is_cosine = schedule.name == "cosine"
    curve = (1 + math.cos(math.pi * done)) / 2 if is_cosine else (1 - done) ** schedule.power
    return peak * (schedule.final_fraction + (1 - schedule.final_fraction) * curve)


def learning_rate(
    schedule: ScheduleConfig, peak: float, step: int, *, steps_per_epoch: int, total_steps: int
) -> float:
    """The rate of step number ``step`` (from 0) of a run whose steps are all alike; see ``rate_at``."""
    return rate_at(
        schedule,
        peak,
        step / steps_per_epoch,
        step_epochs=1 / steps_per_epoch,
        total_epochs=total_steps / steps_per_epoch,
    )


@dataclass(frozen=True)
class Position:
    """How far a run was when it started or went on; what a checkpoint says of it.

    Attributes:
        step: Optimizer steps taken.
        epoch: Whole epochs done.
        consumed: Samples of the present epoch that were used, over all ranks.
    """

    step: int = 0
    epoch: int = 0
    consumed: int = 0


BEGINNING = Position()


@dataclass(frozen=True)
class Course:
    """The rate of every step of a run: call it with the number of the step, from 0.

    A run that goes on under the same world gets the same rates to the last bit, one that goes on under
    another goes on at the same place of the curve.

    Attributes:
        schedule: The job's ``schedule``.
        lr: The job's ``optimizer.lr``.
        pace: Of the training data under the present world.
        epochs: Length of the run, or None.
        steps: Length of the run where ``epochs`` is None.
        start: Where this world took over.
    """

    schedule: ScheduleConfig
    lr: float
    pace: Pace
    epochs: int | None
    steps: int | None = None
    start: Position = BEGINNING

    @property
    def peak(self) -> float:
        """The rate at the top of the schedule."""
        return peak_rate(self.schedule, self.lr, self.pace.global_batch)

    @property
    def total_epochs(self) -> float:
        """Length of the run, in epochs."""
        return self.epochs if self.epochs is not None else self.epochs_done(self.steps or 0)

    def epochs_done(self, step: int) -> float:
        """Epochs done before step number ``step``, which is not before ``start``."""
        return self.pace.epochs_after(self.start.epoch, self.start.consumed, step - self.start.step)

    def __call__(self, step: int) -> float:
        """The rate of step number ``step``."""
        return rate_at(
            self.schedule,
            self.peak,
            self.epochs_done(step),
            step_epochs=self.pace.step_epochs,
            total_epochs=self.total_epochs,
        )

    def describe(self, ranks: int) -> str:
        """What is applied, in one line; see ``describe``."""
        return describe(self.schedule, self.lr, ranks=ranks, pace=self.pace, total_epochs=self.total_epochs)


def describe(schedule: ScheduleConfig, lr: float, *, ranks: int, pace: Pace, total_epochs: float) -> str:
    """What is applied, in one line: ranks, global batch, base and peak rate, warm-up, curve.

    Args:
        schedule: The job's ``schedule``.
        lr: The job's ``optimizer.lr``.
        ranks: Number of ranks.
        pace: Of the training data under these ranks.
        total_epochs: Length of the run, in epochs.
    """
    warmup = schedule.warmup_epochs
    is_cut = warmup > total_epochs + _ROUNDING
    return "; ".join(
        (
            f"learning rate: {_peak_words(schedule, lr, ranks, pace.global_batch)}",
            _warmup_words(schedule, pace),
            f"the warm-up of {_epochs(warmup)} is longer than the run of {total_epochs:.6g}: "
            "the peak rate is never reached"
            if is_cut
            else _curve_words(schedule, total_epochs),
        )
    )


def _epochs(count: float) -> str:
    return f"{count:g} epoch{'' if count == 1 else 's'}"


def _peak_words(schedule: ScheduleConfig, lr: float, ranks: int, global_batch: int) -> str:
    world = f"global batch {global_batch} on {ranks} rank{'' if ranks == 1 else 's'}"
    peak = peak_rate(schedule, lr, global_batch)
    if schedule.base_batch is None:
        return f"{world}, peak {peak:.6g} = lr as it stands (scaling none)"
    factor = f"{global_batch}/{schedule.base_batch}"
    factor = f"sqrt({factor})" if schedule.scaling == "sqrt" else factor
    return (
        f"{world}, base {lr:.6g} at batch {schedule.base_batch}, "
        f"peak {peak:.6g} = {lr:.6g} * {factor} (scaling {schedule.scaling})"
    )


def _warmup_words(schedule: ScheduleConfig, pace: Pace) -> str:
    if schedule.warmup_epochs == 0:
        return "no warm-up"
    steps = math.ceil(schedule.warmup_epochs / pace.step_epochs - _ROUNDING)
    return f"warm-up over {_epochs(schedule.warmup_epochs)} ({steps} step{'' if steps == 1 else 's'})"


def _curve_words(schedule: ScheduleConfig, total_epochs: float) -> str:
    if schedule.name == "constant":
        return "then constant"
    if schedule.name == "step":
        return f"then times {schedule.step_factor:g} every {schedule.step_epochs:g} epochs"
    power = f" of power {schedule.power:g}" if schedule.name == "polynomial" else ""
    return (
        f"then {schedule.name}{power} to {schedule.final_fraction:g} of the peak at epoch {total_epochs:.6g}"
    )

"""The learning rate as a pure function of the step."""

from __future__ import annotations

import math

from hvdtrain.config import ScheduleConfig


def learning_rate(
    schedule: ScheduleConfig, peak: float, step: int, *, steps_per_epoch: int, total_steps: int
) -> float:
    """The rate that optimizer step number ``step`` (from 0) uses.

    During warm-up it rises linearly: step s of W uses ``peak * (s + 1) / W``, so that the
    first step already moves (Goyal et al. 2017, arXiv:1706.02677). After it, with t the
    fraction of the remaining steps that are done:

    - constant: peak
    - cosine: f + (1 - f) * (1 + cos(pi t)) / 2 times peak (Loshchilov, Hutter, arXiv:1608.03983)
    - polynomial: f + (1 - f) * (1 - t) ** power times peak
    - step: step_factor ** floor(epochs since warm-up / step_epochs) times peak

    with f = ``final_fraction``.
    """
    warmup = round(schedule.warmup_epochs * steps_per_epoch)
    if step < warmup:
        return peak * (step + 1) / warmup
    if schedule.name == "constant":
        return peak
    if schedule.name == "step":
        drops = math.floor((step - warmup) / (schedule.step_epochs * steps_per_epoch))
        return float(peak * schedule.step_factor**drops)
    done = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    is_cosine = schedule.name == "cosine"
    curve = (1 + math.cos(math.pi * done)) / 2 if is_cosine else (1 - done) ** schedule.power
    return peak * (schedule.final_fraction + (1 - schedule.final_fraction) * curve)

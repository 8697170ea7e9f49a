"""What a larger batch costs in samples: noise scale, critical batch, steps and cost to a target.

Source: McCandlish et al. 2018, arXiv:1812.06162. A batch is in samples.
"""

from __future__ import annotations

from collections.abc import Sequence

from hvdtrain.errors import InputError


def noise_scale(pairs: Sequence[tuple[float, float]], small: float, big: float) -> float:
    """The simple noise scale from squared norms of gradients of two batch sizes: mean(S) / mean(|G|^2).

    |G|^2 = (B_b |G_b|^2 - B_s |G_s|^2)/(B_b - B_s), S = (|G_s|^2 - |G_b|^2)/(1/B_s - 1/B_b); a ratio of
    averages, for the average of ratios is biased.

    Args:
        pairs: Squared norms (small batch, big batch) of each step.
        small: Samples of the small batch, as of one rank.
        big: Samples of the big batch, as of all ranks.

    Raises:
        InputError: No pair, or batches that do not differ.
    """
    if not pairs or not 0 < small < big:
        raise InputError("a noise scale needs squared norms of two different batches")
    signal = sum((big * b - small * s) / (big - small) for s, b in pairs) / len(pairs)
    noise = sum((s - b) / (1 / small - 1 / big) for s, b in pairs) / len(pairs)
    if signal <= 0:
        return float("inf") if noise > 0 else 0.0
    return max(0.0, noise / signal)


def steps_to_target(least_steps: float, critical_batch: float, batch: float) -> float:
    """S = S_min (1 + B_crit/B)."""
    return least_steps * (1 + critical_batch / batch)


def samples_to_target(least_samples: float, critical_batch: float, batch: float) -> float:
    """E = E_min (1 + B/B_crit)."""
    return least_samples * (1 + batch / critical_batch)


def least_steps(steps: float, batch: float, critical_batch: float) -> float:
    """S_min of a plan that reaches its target in ``steps`` steps of ``batch`` samples."""
    return steps / (1 + critical_batch / batch)


def extra_samples(batch: float, base_batch: float, critical_batch: float) -> float:
    """How many more samples a batch needs to the same target than the base batch: a fraction, 0 for none."""
    return (1 + batch / critical_batch) / (1 + base_batch / critical_batch) - 1


def time_to_target(steps: float, step_s: float) -> float:
    """T = S t_step, in seconds."""
    return steps * step_s


def cost_to_target(gpus: int, price_per_hour: float, time_s: float) -> float:
    """C = p price T, in the price's currency."""
    return gpus * price_per_hour * time_s / 3600

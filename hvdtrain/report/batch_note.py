"""Whether a global batch is past what a problem can use, from the gradient noise scale."""

from __future__ import annotations

from hvdtrain.report.numbers import percent, short
from hvdtrain.report.run_record import RunRecord, is_number
from hvdtrain.scaling.profile import Profile

_PAST = 2.0  # times the noise scale: the estimate itself may be off by that


def note_on_batch(batch: float | None, noise_scale: float | None) -> str:
    """A sentence where the batch is clearly past the noise scale, both in samples; else nothing.

    To the same target, B samples a step take steps in proportion to 1 + noise scale / B (McCandlish et al.
    2018), so a batch without bounds would still save only noise scale / (B + noise scale) of them.
    """
    if not batch or not noise_scale or batch < _PAST * noise_scale:
        return ""
    times, saved = short(batch / noise_scale), percent(noise_scale / (batch + noise_scale), 0)
    return (
        f"the batch is past what this problem can use: {batch:,.0f} samples a step are {times} times the "
        f"gradient noise scale of {short(noise_scale)}; no larger one saves more than {saved} of the steps"
    )


def note_on_profile(profile: Profile) -> str:
    """The sentence of a profile."""
    return note_on_batch(profile.global_batch, profile.noise_scale.simple if profile.noise_scale else None)


def note_on_run(run: RunRecord) -> str:
    """The sentence of a run: its last noise scale counts, since it grows while a training goes on."""
    measured = run.series("noise_scale")
    batch = run.job.get("batch")
    whole = batch.get("global") if isinstance(batch, dict) else None
    if measured and is_number(whole):
        return note_on_batch(float(whole or 0), measured[-1][1])
    return note_on_profile(run.profile) if run.profile else ""

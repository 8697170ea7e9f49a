"""What can be checked of a job before any rank starts. Imports no torch."""

from __future__ import annotations

from hvdtrain.config import Job
from hvdtrain.errors import InputError


def check_batch(job: Job, size: int) -> None:
    """Refuses a batch that ``size`` ranks cannot share.

    Raises:
        InputError: Fewer samples than ranks, or not divisible and not to be split.
    """
    total = job.batch.global_
    if total is None:
        return
    if total < size:
        raise InputError(
            f"batch.global: {total} samples for {size} ranks leave a rank without data",
            legal=f"at least {size}",
        )
    if total % size and job.batch.uneven == "refuse":
        below = total - total % size
        raise InputError(
            f"batch.global: {total} does not divide by {size} ranks, nothing was started",
            legal=f"{below} or {below + size}",
            do="or set batch.uneven=split: ranks then differ by one sample and the mean stays exact",
        )

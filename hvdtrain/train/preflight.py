"""What can be checked of a job before any rank starts. Imports no torch."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.config import Job
from hvdtrain.data.partition import Partition
from hvdtrain.data.passes import Passes
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
            do="take a larger batch or fewer ranks",
        )
    if total % size and job.batch.uneven == "refuse":
        below = total - total % size
        raise InputError(
            f"batch.global: {total} does not divide by {size} ranks, nothing was started",
            legal=f"{below} or {below + size}",
            do="or set batch.uneven=split: ranks then differ by one sample and the mean stays exact",
        )


def check_batchnorm(
    partition: Partition, layers: Sequence[str], *, num_steps: int, accumulate: int = 1
) -> None:
    """Refuses a job in which a rank would give a batch norm a single value per channel.

    Args:
        partition: Of the training data.
        layers: Names of the batch norms that one sample is too little for; empty where there are none.
        num_steps: Steps that the job takes; a short last step of the epoch may lie beyond them.
        accumulate: Passes of a step.

    Raises:
        InputError: A pass of a step holds one sample on some rank; says which step and what to do.
    """
    full, per_epoch = partition.step_size, partition.num_steps()
    last = partition.last_count()
    counts = [(1, full)] if per_epoch > 1 or last == full else []
    counts += [(per_epoch, last)] if num_steps >= per_epoch else []
    micro = Passes(partition, 0, accumulate).micro
    for step, count in counts if layers else ():
        if _holds_one(count, partition.num_ranks, micro):
            raise InputError(
                f"batch: step {step} of each epoch has {_few(count, partition.num_ranks, accumulate)}: "
                f"batch norm {layers[0]!r} cannot train on one value per channel",
                do=_remedies(partition, step, count, accumulate),
            )


def _few(count: int, num_ranks: int, accumulate: int) -> str:
    samples = "1 sample" if count == 1 else f"{count} samples"
    ranks = "1 rank" if num_ranks == 1 else f"{num_ranks} ranks"
    alone = f"in some of {accumulate} passes" if accumulate > 1 else "on some rank" if num_ranks > 1 else ""
    return f"{samples} on {ranks}" + (f", a single one {alone}" if alone and count > 1 else "")


def _remedies(partition: Partition, step: int, count: int, accumulate: int) -> str:
    """What helps: one rank has no others to synchronise with, and one sample is alone on any ranks."""
    if step > 1:
        ways = ["set batch.tail=drop", "take another batch"]
    elif count < partition.step_size:
        ways = ["take more training data"]  # all there is: a larger batch has no more
    else:
        ways = ["take a larger batch"]
    ways += ["lower batch.accumulate"] if accumulate > 1 and count > 1 else []
    if partition.num_ranks > 1 and count > 1:
        ways += ["take fewer ranks", "set sync_batchnorm=true"]
    return " or ".join(part for part in (", ".join(ways[:-1]), ways[-1]) if part)


def _holds_one(count: int, num_ranks: int, micro: int) -> bool:
    """Whether some rank has a pass of one sample in a step of ``count``, cut into passes of ``micro``."""
    shares = {count // num_ranks, -(-count // num_ranks)}
    return any(share > 0 and (micro == 1 or share % micro == 1) for share in shares)


def check_timeline(path: Path | None) -> None:
    """Refuses a timeline that cannot be written; leaves nothing behind.

    Raises:
        InputError: Its folder is missing, or it, or the file, cannot be written.
    """
    if path is None:
        return
    where, do = "tuning.timeline", "make the folder, or name a file in one that can be written"
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder", where=where, legal="the name of a file")
        if not path.parent.is_dir():
            raise InputError(
                f"{path} cannot be written: there is no folder {path.parent}", where=where, do=do
            )
        if path.exists():
            _refuse_other_file(path, where)
            path.open("a").close()
        else:
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}", where=where, do=do) from None


def _refuse_other_file(path: Path, where: str) -> None:
    """Horovod writes over what is there: an older timeline, a list of JSON, may be lost, and nothing else."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        begin = file.read(64).lstrip()
    if begin and not begin.startswith(b"["):
        raise InputError(
            f"{path} is there already, and no timeline",
            where=where,
            legal="a new file, or an older timeline",
            do="name another, or remove it",
        )

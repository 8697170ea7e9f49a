"""What is to be verified, checked before anything is launched. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtrain.backends.choose import choose_backend
from hvdtrain.config import Job
from hvdtrain.data.validate import validate_source
from hvdtrain.errors import InputError
from hvdtrain.train.preflight import check_batch

# In fp32 the sum of n terms in another order differs by about sqrt(n) 2^-24: 6e-5 of a million terms. In half
# precision each sum is rounded once more, by 2^-11 (fp16) or 2^-8 (bf16); five of these are allowed for.
TOLERANCES = {"fp32": 1e-4, "none": 1e-4, "fp16": 2.5e-3, "bf16": 2e-2}
# Unit of rounding by precision: how far a control run's first parameters are moved.
_UNITS = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
_MAX_RANKS = 1_000_000


@dataclass(frozen=True)
class Run:
    """One launch: a number of ranks and an engine."""

    size: int
    backend: str

    @property
    def text(self) -> str:
        """Such as ``2 ranks with ddp``."""
        return f"{self.size} {'rank' if self.size == 1 else 'ranks'} with {self.backend}"


@dataclass(frozen=True)
class Request:
    """Launches whose steps are compared with those of the first one.

    Attributes:
        job: With the global batch that all runs have.
        runs: At least two, all different.
        steps: To be taken, at most.
        tolerance: Of a difference, relative to its tensor's norm.
        import_path: Where factories of the user's are looked for.
    """

    job: Job
    runs: tuple[Run, ...]
    steps: int
    tolerance: float
    import_path: tuple[str, ...] = ()

    @property
    def rounding(self) -> float:
        """The unit of rounding of the job's forward passes."""
        return _UNITS[self.job.precision]

    def job_of(self, run: Run) -> Job:
        """The job of one of the runs."""
        return Job.model_validate({**_given(self.job), "backend": run.backend})


def parse_sizes(text: str) -> tuple[int, ...]:
    """Numbers of ranks from a text such as ``1,2,3``.

    Raises:
        InputError: One is no number of ranks, or stands twice.
    """
    sizes = []
    for word in text.split(","):
        word = word.strip()
        if not (word.isdecimal() and word.isascii() and 1 <= int(word) <= _MAX_RANKS):
            raise InputError(
                f"{word!r} is no number of ranks", where=f"-np {text}", legal="such as -np 1,2,3, from 1"
            )
        sizes.append(int(word))
    _refuse_double(sizes, f"-np {text}")
    return tuple(sizes)


def make_request(
    job: Job,
    sizes: Sequence[int],
    backends: Sequence[str],
    *,
    steps: int,
    tolerance: float | None = None,
    import_path: Sequence[Path | str] = (),
) -> Request:
    """Checks everything that can be checked before a launch.

    Args:
        job: As the user wrote it. All runs have its global batch: ``batch.global``, or ``batch.per_rank``
            times the first number of ranks.
        sizes: Numbers of ranks; the first is the one that the others are compared with.
        backends: Engines, each run on all numbers of ranks; empty for the job's.
        steps: At most; a shorter job takes fewer.
        tolerance: None for that of the job's precision.
        import_path: Where factories of the user's are looked for.

    Raises:
        InputError: Nothing to compare, an engine that is not there, or a batch that the ranks cannot share.
    """
    names = list(backends or [job.backend])
    legal = ("auto", "horovod", "ddp", "single")
    for name in names:
        if name not in legal:
            raise InputError(f"no backend {name!r}", where="--backend", legal=", ".join(legal))
    runs = [Run(size, choose_backend(name, size)[0]) for name in names for size in sizes]
    _refuse_double([run.text for run in runs], "--backend")
    if len(runs) < 2:
        raise InputError(
            f"one run, {runs[0].text}: nothing to compare it with",
            where="-np",
            do="name several numbers of ranks, such as -np 1,2, or two engines with --backend",
        )
    if job.gradients.reduce == "adasum":
        raise InputError(
            "adasum is no mean: on another number of ranks it trains differently by design",
            where="gradients.reduce",
            do="verify with --set gradients.reduce=mean",
        )
    if tolerance is None:
        tolerance = max(TOLERANCES[job.precision], TOLERANCES[job.tuning.compression])
    if not 0 < tolerance < math.inf:
        raise InputError(f"a tolerance of {tolerance}", where="--tolerance", legal="a number above 0")
    shared = _with_global_batch(job, sizes[0])
    for size in sizes:
        check_batch(shared, size)
    validate_source(shared.data)
    return Request(shared, tuple(runs), steps, tolerance, tuple(map(str, import_path)))


def _with_global_batch(job: Job, size: int) -> Job:
    """The same batch on any number of ranks, uneven where need be; no timeline: each run would write it."""
    document = _given(job)
    batch = {key: value for key, value in document["batch"].items() if key != "per_rank"}
    document["batch"] = {**batch, "global": job.global_batch(size), "uneven": "split"}
    document.get("tuning", {}).pop("timeline", None)
    document.pop("resume", None)  # every run begins at step 1
    return Job.model_validate(document)


def _given(job: Job) -> dict[str, Any]:
    return job.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _refuse_double(items: Sequence[object], where: str) -> None:
    for item in items:
        if items.count(item) > 1:
            raise InputError(f"{item} stands twice", where=where, do="name each once")

"""Horovod's knobs: from the job's words to the variables that Horovod reads at ``init``.

Source of the names and units: Horovod 0.28.1, ``horovod/common/common.h``; fusion in bytes,
cycle in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping

from hvdtrain.config import TuningConfig

MIB = 1 << 20


def horovod_environment(tuning: TuningConfig) -> dict[str, str]:
    """The variables that a job's tuning sets; what the job leaves out is not in the result."""
    candidates: dict[str, object | None] = {
        "HOROVOD_FUSION_THRESHOLD": None if tuning.fusion_mb is None else round(tuning.fusion_mb * MIB),
        "HOROVOD_CYCLE_TIME": tuning.cycle_ms,
        "HOROVOD_CACHE_CAPACITY": tuning.cache,
        "HOROVOD_HIERARCHICAL_ALLREDUCE": None if tuning.hierarchical is None else int(tuning.hierarchical),
        "HOROVOD_AUTOTUNE": 1 if tuning.autotune else None,
        "HOROVOD_TIMELINE": tuning.timeline,
    }
    return {name: str(value) for name, value in candidates.items() if value is not None}


def mpi_defaults(local_size: int, num_cores: int, on_cpu: bool, env: Mapping[str, str]) -> dict[str, str]:
    """Open MPI settings for ranks that somebody else's launcher started, where the user set none.

    A rank that waits spins on its core; when the ranks themselves compute on the CPUs, or outnumber
    them, it takes that core from a rank that has work. Yielding when idle gives it back.
    """
    name = "OMPI_MCA_mpi_yield_when_idle"
    crowded = on_cpu or local_size > num_cores
    return {name: "1"} if crowded and name not in env else {}


def conflicts(settings: Mapping[str, str], env: Mapping[str, str]) -> list[str]:
    """One line per variable that the job sets to another value than the environment does."""
    return [
        f"{name}={env[name]} of the environment is replaced by the job's {value}"
        for name, value in sorted(settings.items())
        if env.get(name, value) != value
    ]

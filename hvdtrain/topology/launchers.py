"""The launchers' variables as tables.

Each launcher is one row that names its variables. The innermost launcher is the one that knows who a
process is: ``mpirun`` inside a Slurm job hands every rank the batch step's ``SLURM_PROCID=0``. So the rows
stand in an order in which an outer launcher comes after those that it may hold.

Sources: Open MPI's mpirun(1), MPICH's Hydra and Intel MPI (PMI-1), PMIx 4, torchrun's "Environment
Variables", Horovod 0.28.1 ``runner/gloo_run.py``, Slurm's srun(1) and sbatch(1).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One launcher: the variables that show it, and the names of each value, best first."""

    launcher: str
    marks: tuple[str, ...]
    rank: tuple[str, ...]
    size: tuple[str, ...]
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...]
    cross_rank: tuple[str, ...] = ()
    cross_size: tuple[str, ...] = ()


_TORCH_NAMES = (
    ("RANK",),
    ("WORLD_SIZE",),
    ("LOCAL_RANK",),
    ("LOCAL_WORLD_SIZE",),
    ("GROUP_RANK",),
    ("GROUP_WORLD_SIZE",),
)

ROWS = (
    # torchrun starts plain processes, so it may stand inside mpirun (one torchrun a host), never around it.
    Row("torchrun", ("TORCHELASTIC_RUN_ID",), *_TORCH_NAMES),
    Row(
        "openmpi",
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    Row(
        "horovodrun",
        ("HOROVOD_RANK", "HOROVOD_SIZE"),
        ("HOROVOD_RANK",),
        ("HOROVOD_SIZE",),
        ("HOROVOD_LOCAL_RANK",),
        ("HOROVOD_LOCAL_SIZE",),
        ("HOROVOD_CROSS_RANK",),
        ("HOROVOD_CROSS_SIZE",),
    ),
    Row("local", ("HVDTRAIN_LOCAL_LAUNCH",), *_TORCH_NAMES),
    Row(
        "mvapich",
        ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
        ("MV2_COMM_WORLD_RANK",),
        ("MV2_COMM_WORLD_SIZE",),
        ("MV2_COMM_WORLD_LOCAL_RANK",),
        ("MV2_COMM_WORLD_LOCAL_SIZE",),
    ),
    Row(
        "pmi",
        ("PMI_RANK", "PMI_SIZE"),
        ("PMI_RANK",),
        ("PMI_SIZE",),
        ("MPI_LOCALRANKID",),
        ("MPI_LOCALNRANKS",),
    ),
    Row("pmix", ("PMIX_RANK",), ("PMIX_RANK",), (), (), ()),
)

SLURM = Row(
    "slurm",
    ("SLURM_STEP_ID",),
    ("SLURM_PROCID",),
    ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
    ("SLURM_LOCALID",),
    (),
    ("SLURM_NODEID",),
    ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
)

# Set by hvdtrain's own launches on several hosts, for what mpirun does not tell: how many ranks each host
# holds, in the order of ranks and in Slurm's words, ``4(x2),1``.
RANKS_PER_HOST = "HVDTRAIN_RANKS_PER_HOST"

# Steps that hold a script or a shell, not tasks (slurm/slurm.h: SLURM_BATCH_SCRIPT and its neighbours).
STEPS_WITHOUT_TASKS = frozenset(
    {"batch", "extern", "interactive", "4294967290", "4294967291", "4294967292", "4294967293"}
)

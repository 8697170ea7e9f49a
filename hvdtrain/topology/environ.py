"""Who am I: launchers' variables as tables, read into a ``World``.

Each launcher is one row that names its variables. The innermost launcher is the one that
knows: ``mpirun`` inside a Slurm job hands every rank the batch step's ``SLURM_PROCID=0``, so
the rows are asked in an order in which an outer launcher comes after the ones it may hold.

Sources: Open MPI's mpirun(1), MPICH's Hydra and Intel MPI (PMI-1), PMIx 4, torchrun's
"Environment Variables", Horovod 0.28.1 ``runner/gloo_run.py``, Slurm's srun(1) and sbatch(1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hvdtrain.errors import InputError
from hvdtrain.topology.devices import device_index as device_index

Environment = Mapping[str, str]


@dataclass(frozen=True)
class World:
    """One process's place among all that were started with it.

    Attributes:
        rank: Index among all processes, 0 to ``size - 1``.
        size: Number of processes.
        local_rank: Index among the processes of this host.
        local_size: Number of processes on this host.
        cross_rank: Index of this host. None where the launcher does not tell it and the hosts
            hold different numbers of ranks, so that it does not follow from the other values.
        cross_size: Number of hosts; None in the same case.
        launcher: ``single``, ``openmpi``, ``horovodrun``, ``torchrun``, ``local``, ``mvapich``,
            ``pmi``, ``pmix`` or ``slurm``.
        notice: What the user should be told about how this was found; empty if nothing.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int | None = 0
    cross_size: int | None = 1
    launcher: str = "single"
    notice: str = ""


@dataclass(frozen=True)
class _Row:
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

_ROWS = (
    # torchrun starts plain processes, so it may stand inside mpirun (one torchrun a host), never around it.
    _Row("torchrun", ("TORCHELASTIC_RUN_ID",), *_TORCH_NAMES),
    _Row(
        "openmpi",
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    _Row(
        "horovodrun",
        ("HOROVOD_RANK", "HOROVOD_SIZE"),
        ("HOROVOD_RANK",),
        ("HOROVOD_SIZE",),
        ("HOROVOD_LOCAL_RANK",),
        ("HOROVOD_LOCAL_SIZE",),
    ),
    _Row("local", ("HVDTRAIN_LOCAL_LAUNCH",), *_TORCH_NAMES),
    _Row(
        "mvapich",
        ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
        ("MV2_COMM_WORLD_RANK",),
        ("MV2_COMM_WORLD_SIZE",),
        ("MV2_COMM_WORLD_LOCAL_RANK",),
        ("MV2_COMM_WORLD_LOCAL_SIZE",),
    ),
    _Row(
        "pmi",
        ("PMI_RANK", "PMI_SIZE"),
        ("PMI_RANK",),
        ("PMI_SIZE",),
        ("MPI_LOCALRANKID",),
        ("MPI_LOCALNRANKS",),
    ),
    _Row("pmix", ("PMIX_RANK",), ("PMIX_RANK",), (), (), ()),
)

_SLURM = _Row(
    "slurm",
    ("SLURM_STEP_ID",),
    ("SLURM_PROCID",),
    ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
    ("SLURM_LOCALID",),
    (),
    ("SLURM_NODEID",),
    ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
)

# Steps that hold a script or a shell, not tasks (slurm/slurm.h: SLURM_BATCH_SCRIPT and its neighbours).
_STEPS_WITHOUT_TASKS = frozenset(
    {"batch", "extern", "interactive", "4294967290", "4294967291", "4294967292", "4294967293"}
)


def find_world(env: Environment) -> World:
    """Tells this process's rank from what its launcher left in the environment.

    A process without a launcher, and a Slurm batch script or shell outside a step, is rank 0
    of 1; in the second case ``notice`` says how to start the ranks.

    Args:
        env: The process's environment, ``os.environ`` at the edge.

    Raises:
        InputError: The variables contradict themselves, are incomplete or are no numbers.
    """
    for row in _ROWS:
        if any(_value(env, name) is not None for name in row.marks):
            return _read(row, env)
    if not _value(env, "SLURM_JOB_ID") and not _value(env, "SLURM_STEP_ID"):
        return World()
    if _in_slurm_step(env):
        return _read_slurm(env)
    return World(notice=_batch_notice(env))


def check_engine_size(world: World, engine_size: int) -> None:
    """Holds what the launcher started against what the communication engine sees.

    An MPI library that finds no partner starts every process as a world of its own, without
    an error: N trainings that write one checkpoint.

    Raises:
        InputError: The two differ; says which launch option connects them.
    """
    if world.size == engine_size:
        return
    if world.launcher in ("slurm", "pmi", "pmix"):
        raise InputError(
            f"Slurm started {world.size} tasks but MPI sees {engine_size}"
            if world.launcher == "slurm"
            else f"the launcher started {world.size} ranks but MPI sees {engine_size}",
            do="start with srun --mpi=pmix (or pmi2), the one that this MPI was built for; "
            "srun --mpi=list names those that this Slurm has",
        )
    if world.launcher == "single":
        raise InputError(
            f"MPI sees {engine_size} ranks, but no launcher's variables are in the environment",
            legal="mpirun, srun, horovodrun, torchrun or hvdtrain run",
        )
    raise InputError(
        f"{world.launcher} started {world.size} ranks but the engine sees {engine_size}",
        do="take the launcher and the MPI that the engine was built with from one installation",
    )


def _read(row: _Row, env: Environment) -> World:
    step = _read_slurm(env) if _in_slurm_step(env) else None
    rank = _number(env, row.rank, row.launcher)
    if not row.size:  # PMIx alone tells no size: only the step around it does
        if step is None or step.rank != rank:
            raise InputError(
                f"PMIX_RANK={rank} is set, but nothing tells the number of ranks",
                do="start with mpirun, srun or hvdtrain run",
            )
        return _world(row, env, (rank, step.size, step.local_rank, step.local_size), step)
    size = _number(env, row.size, row.launcher)
    if size == 1 and not _any(env, row.local_rank + row.local_size):
        local_rank, local_size = 0, 1
    elif row.launcher == "pmi" and not _any(env, row.local_rank + row.local_size):
        if step is None or (step.rank, step.size) != (rank, size):
            raise _incomplete(row.launcher, row.local_rank + row.local_size, env, row)
        local_rank, local_size = step.local_rank, step.local_size
    else:
        local_rank = _number(env, row.local_rank, row.launcher)
        local_size = _number(env, row.local_size, row.launcher)
        step = None
    return _world(row, env, (rank, size, local_rank, local_size), step)


def _world(row: _Row, env: Environment, places: tuple[int, int, int, int], step: World | None) -> World:
    rank, size, local_rank, local_size = places
    cross_rank: int | None
    cross_size: int | None
    if step is not None:
        cross_rank, cross_size = step.cross_rank, step.cross_size
    elif row.cross_rank and _any(env, row.cross_rank):
        cross_rank = _number(env, row.cross_rank, row.launcher)
        cross_size = (
            _number(env, row.cross_size, row.launcher)
            if _any(env, row.cross_size)
            else _hosts(size, local_size)
        )
    else:
        cross_size = _hosts(size, local_size)
        cross_rank = rank // local_size if cross_size is not None else None
    world = World(rank, size, local_rank, local_size, cross_rank, cross_size, row.launcher)
    _check(world, row, env)
    return world


def _hosts(size: int, local_size: int) -> int | None:
    """The number of hosts if all hold ``local_size`` ranks."""
    return size // local_size if local_size > 0 and size % local_size == 0 else None


def _in_slurm_step(env: Environment) -> bool:
    step = _value(env, "SLURM_STEP_ID")
    return step is not None and step not in _STEPS_WITHOUT_TASKS and _value(env, "SLURM_PROCID") is not None


def _read_slurm(env: Environment) -> World:
    rank = _number(env, _SLURM.rank, "slurm")
    size = _number(env, _SLURM.size, "slurm")
    local_rank = _number(env, _SLURM.local_rank, "slurm")
    node = _number(env, _SLURM.cross_rank, "slurm")
    nodes = _number(env, _SLURM.cross_size, "slurm")
    local_size = _slurm_local_size(env, node, size)
    world = World(rank, size, local_rank, local_size, node, nodes, "slurm")
    _check(world, _SLURM, env)
    return world


def _slurm_local_size(env: Environment, node: int, size: int) -> int:
    """Tasks on this node: from the layout, or, in a heterogeneous job, from the node's task ids."""
    from hvdtrain.topology.nodelist import expand_counts

    name = _first(env, ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    counts = expand_counts(env[name]) if name else ()
    if node < len(counts) and sum(counts) == size:
        return counts[node]
    # The layout of a heterogeneous job speaks of one component, its ranks of all of them.
    gtids = _value(env, "SLURM_GTIDS")
    if gtids and (_value(env, "SLURM_HET_SIZE") or not counts):
        return len(gtids.split(","))
    layout = f"{name}={env[name]}" if name else "no SLURM_TASKS_PER_NODE"
    shown = _shown(env, (*_SLURM.size, "SLURM_NODEID"))
    raise InputError(f"Slurm's variables contradict themselves: {layout} with {shown}")


def _batch_notice(env: Environment) -> str:
    tasks = _first(env, _SLURM.size)
    layout, per_node = _value(env, "SLURM_TASKS_PER_NODE"), _value(env, "SLURM_NTASKS_PER_NODE")
    text = (
        f"inside Slurm job {env.get('SLURM_JOB_ID', '?')} but outside a step: this is one process, "
        f"not a rank{f' of {env[tasks]}' if tasks else ''}; start the ranks with srun or hvdtrain run"
    )
    if layout and per_node and layout.partition("(")[0] != per_node:
        text += (
            f" (SLURM_NTASKS_PER_NODE={per_node} contradicts SLURM_TASKS_PER_NODE={layout}; the latter holds)"
        )
    return text


def _check(world: World, row: _Row, env: Environment) -> None:
    """Refuses layouts that cannot be."""
    wrong = [
        (world.rank >= world.size, row.rank + row.size),
        (world.local_rank >= world.local_size, row.local_rank + row.local_size),
        (world.local_size > world.size, row.local_size + row.size),
        (world.local_rank > world.rank, row.local_rank + row.rank),
        (
            world.cross_rank is not None
            and world.cross_size is not None
            and world.cross_rank >= world.cross_size,
            row.cross_rank + row.cross_size,
        ),
    ]
    for is_wrong, names in wrong:
        if is_wrong:
            shown = _shown(env, names) or str(world)
            raise InputError(f"the variables of {row.launcher} contradict themselves: {shown}")


def _number(env: Environment, names: Sequence[str], launcher: str) -> int:
    """The first of ``names`` that is set, as a number from 0 up."""
    name = _first(env, names)
    if name is None:
        row = next((row for row in (*_ROWS, _SLURM) if row.launcher == launcher), _SLURM)
        raise _incomplete(launcher, names, env, row)
    text = env[name].strip()
    if not (text.isascii() and text.isdigit()):
        raise InputError(f"{name}={text!r}, set by {launcher}, is no number", legal="0, 1, 2, ...")
    return int(text)


def _incomplete(launcher: str, names: Sequence[str], env: Environment, row: _Row) -> InputError:
    return InputError(
        f"{launcher} left {_shown(env, row.marks + row.rank + row.size)} but not {' or '.join(names)}",
        do="start with mpirun, srun or hvdtrain run, or unset the variables of a launcher that is not there",
    )


def _shown(env: Environment, names: Sequence[str]) -> str:
    return " ".join(f"{name}={env[name]}" for name in dict.fromkeys(names) if _value(env, name) is not None)


def _value(env: Environment, name: str) -> str | None:
    """A variable's value; one that is set to nothing counts as not set."""
    return env.get(name, "").strip() or None


def _first(env: Environment, names: Sequence[str]) -> str | None:
    return next((name for name in names if _value(env, name) is not None), None)


def _any(env: Environment, names: Sequence[str]) -> bool:
    return _first(env, names) is not None

"""Who am I: what the launchers' variables (see ``launchers``) say, read into a ``World``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from hvdtrain.errors import InputError
from hvdtrain.topology.devices import device_index as device_index
from hvdtrain.topology.launchers import RANKS_PER_HOST, ROWS, SLURM, STEPS_WITHOUT_TASKS, Row

Environment = Mapping[str, str]


@dataclass(frozen=True)
class World:
    """One process's place among all that were started with it.

    Attributes:
        rank: Index among all processes, 0 to ``size - 1``.
        size: Number of processes.
        local_rank: Index among the processes of this host.
        local_size: Number of processes on this host.
        cross_rank: Index of this host, as the launcher counts; None where it does not tell (a foreign
            mpirun on several hosts).
        cross_size: Number of hosts, as the launcher counts; None in the same case.
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


def find_world(env: Environment) -> World:
    """Tells this process's rank from what its launcher left in the environment.

    A process without a launcher, and a Slurm batch script or shell outside a step, is rank 0
    of 1; in the second case ``notice`` says how to start the ranks.

    Args:
        env: The process's environment, ``os.environ`` at the edge.

    Raises:
        InputError: The variables contradict themselves, are incomplete or are no numbers.
    """
    for row in ROWS:
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


def _read(row: Row, env: Environment) -> World:
    rank = _number(env, row.rank, row.launcher)
    size = _number(env, row.size, row.launcher) if row.size else None
    if size == 1 and not _any(env, row.local_rank + row.local_size):
        world = World(rank, launcher=row.launcher)
    elif row.launcher in ("pmi", "pmix") and not _any(env, row.local_rank + row.local_size):
        world = _in_step_of_pmi(row, env, rank, size)
    else:
        assert size is not None, "only PMIx tells no size"
        local_rank = _number(env, row.local_rank, row.launcher)
        local_size = _number(env, row.local_size, row.launcher)
        cross = _told_host(row, env) or _host_in_layout(env, rank - local_rank, size, local_size)
        world = World(rank, size, local_rank, local_size, *cross, launcher=row.launcher)
    _check(world, row, env)
    return world


def _in_step_of_pmi(row: Row, env: Environment, rank: int, size: int | None) -> World:
    """Under ``srun --mpi=pmix`` or ``pmi2`` PMI tells rank and perhaps size; the step tells the place."""
    step = _read_slurm(env) if _in_slurm_step(env) else None
    if step is None or step.rank != rank or size not in (None, step.size):
        missing = row.local_rank + row.local_size or ("the number of ranks",)
        raise _incomplete(row.launcher, missing, env, row)
    return replace(step, launcher=row.launcher)


def _told_host(row: Row, env: Environment) -> tuple[int, int] | None:
    """Index and number of the hosts, where the launcher tells them."""
    if not row.cross_rank or not _any(env, row.cross_rank + row.cross_size):
        return None
    return _number(env, row.cross_rank, row.launcher), _number(env, row.cross_size, row.launcher)


def _host_in_layout(
    env: Environment, first: int, size: int, local_size: int
) -> tuple[int | None, int | None]:
    """Index and number of the hosts from the layout that hvdtrain's own launch tells.

    Args:
        env: ``RANKS_PER_HOST`` may stand in it.
        first: The lowest rank on this host.
        size: Number of ranks.
        local_size: Number of ranks on this host.
    """
    if size == local_size:
        return 0, 1
    text = _value(env, RANKS_PER_HOST)
    counts = _expand_counts(text, RANKS_PER_HOST) if text else ()
    firsts = list(accumulate(counts, initial=0))
    if firsts[-1] != size or first not in firsts or counts[firsts.index(first)] != local_size:
        return None, None  # of another launch, or of a mapping that is not by slot
    return firsts.index(first), len(counts)


def _expand_counts(text: str, where: str) -> list[int]:
    from hvdtrain.topology.nodelist import expand_counts  # few launches need it; every rank pays for imports

    return expand_counts(text, where)


def _in_slurm_step(env: Environment) -> bool:
    step = _value(env, "SLURM_STEP_ID")
    return step is not None and step not in STEPS_WITHOUT_TASKS and _value(env, "SLURM_PROCID") is not None


def _read_slurm(env: Environment) -> World:
    rank = _number(env, SLURM.rank, "slurm")
    size = _number(env, SLURM.size, "slurm")
    local_rank = _number(env, SLURM.local_rank, "slurm")
    node = _number(env, SLURM.cross_rank, "slurm")
    nodes = _number(env, SLURM.cross_size, "slurm")
    local_size = _slurm_local_size(env, node, size)
    world = World(rank, size, local_rank, local_size, node, nodes, "slurm")
    _check(world, SLURM, env)
    return world


def _slurm_local_size(env: Environment, node: int, size: int) -> int:
    """Tasks on this node: from the layout, or, in a heterogeneous job, from the node's task ids."""
    name = _first(env, ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    counts = _expand_counts(env[name], name) if name else ()
    if node < len(counts) and sum(counts) == size:
        return counts[node]
    # The layout of a heterogeneous job speaks of one component, its ranks of all of them.
    gtids = _value(env, "SLURM_GTIDS")
    if gtids and (_value(env, "SLURM_HET_SIZE") or not counts):
        return len(gtids.split(","))
    layout = f"{name}={env[name]}" if name else "no SLURM_TASKS_PER_NODE"
    shown = _shown(env, (*SLURM.size, "SLURM_NODEID"))
    raise InputError(f"Slurm's variables contradict themselves: {layout} with {shown}")


def _batch_notice(env: Environment) -> str:
    tasks = _first(env, SLURM.size)
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


def _check(world: World, row: Row, env: Environment) -> None:
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
        row = next((row for row in (*ROWS, SLURM) if row.launcher == launcher), SLURM)
        raise _incomplete(launcher, names, env, row)
    text = env[name].strip()
    if not (text.isascii() and text.isdigit()):
        raise InputError(f"{name}={text!r}, set by {launcher}, is no number", legal="0, 1, 2, ...")
    return int(text)


def _incomplete(launcher: str, names: Sequence[str], env: Environment, row: Row) -> InputError:
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

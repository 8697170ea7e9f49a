"""Which hosts a scheduler gave: the environment of a Slurm, LSF or PBS job -> ``Cluster``.

Sources: sbatch(1), srun(1) and Slurm's ``src/common/env.c`` (env_array_for_batch_job); LSF's
"Environment variable reference" (LSB_DJOB_HOSTFILE, LSB_MCPU_HOSTS); qsub(1B) of PBS (PBS_NODEFILE).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hvdtrain.errors import InputError
from hvdtrain.topology.hosts import Cluster, Host
from hvdtrain.topology.names import MAX_SLOTS, machine_key, parse_host, parse_slots, quoted, whole_number
from hvdtrain.topology.nodelist import expand_counts, expand_nodelist

Environment = Mapping[str, str]
ReadHostfile = Callable[[Path], Cluster]

_OWN_LIST = "give the hosts with -H, --hostfile or --nodelist"


def find_cluster(env: Environment, read: ReadHostfile) -> Cluster | None:
    """The hosts that the scheduler around this process gave, with one slot for each task.

    Slurm comes first: sites that offer PBS commands on top of it set both.

    Args:
        env: The process's environment, ``os.environ`` at the edge.
        read: Reads a node file that a variable names.

    Returns:
        None where no scheduler's variables are set.

    Raises:
        InputError: The variables are wrong or contradict each other.
    """
    if _value(env, "SLURM_HOSTFILE"):
        return _within_job(_read_file(env, "SLURM_HOSTFILE", read), env)
    if name := _first(env, "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        return _slurm_cluster(env, name)
    if _value(env, "LSB_DJOB_HOSTFILE"):
        return _read_file(env, "LSB_DJOB_HOSTFILE", read)
    if words := _value(env, "LSB_MCPU_HOSTS").split():
        return _lsf_cluster(words)
    if _value(env, "PBS_NODEFILE"):
        return _read_file(env, "PBS_NODEFILE", read)
    return None


def nodelist_cluster(nodelist: str, tasks_per_node: str) -> Cluster:
    """The cluster of ``--nodelist`` and ``--tasks-per-node``, in Slurm's two grammars.

    A single number holds for every node, as it does for ``srun --ntasks-per-node``.

    Raises:
        InputError: One of them is wrong, or their lengths differ.
    """
    names = expand_nodelist(nodelist, "--nodelist")
    counts = expand_counts(tasks_per_node, "--tasks-per-node")
    if len(counts) == 1 and "(" not in tasks_per_node:
        counts *= len(names)
    if len(counts) != len(names):
        raise InputError(
            f"{quoted(tasks_per_node)} is a layout of {len(counts)}, "
            f"but {quoted(nodelist)} names {len(names)} hosts",
            where="--tasks-per-node",
            legal=f"one number, or one for each of the {len(names)} nodes",
        )
    return _cluster(names, counts, "--nodelist")


def _cluster(names: Sequence[str], slots: Sequence[int], source: str, notices: Sequence[str] = ()) -> Cluster:
    seen: set[str] = set()
    for name in names:
        key = machine_key(name)
        if key in seen:
            raise InputError(f"{name} stands twice", where=source, legal="each host once", do=_OWN_LIST)
        seen.add(key)
    return Cluster(tuple(map(Host, names, slots)), source, tuple(notices))


def _slurm_cluster(env: Environment, variable: str) -> Cluster:
    if _value(env, "SLURM_HET_SIZE") not in ("", "1"):
        raise InputError(
            f"SLURM_HET_SIZE={env['SLURM_HET_SIZE']}: the parts of a heterogeneous job are not read together",
            legal="a job of one part",
            do=_OWN_LIST,
        )
    names = expand_nodelist(env[variable], variable)
    declared = _number(env, "SLURM_JOB_NUM_NODES")
    if declared is not None and declared != len(names):
        raise InputError(
            f"{quoted(env[variable])} names {len(names)} hosts, but SLURM_JOB_NUM_NODES={declared}",
            where=variable,
            do=_OWN_LIST,
        )
    slots, notices = _slurm_slots(env, len(names))
    if len(slots) != len(names):
        raise InputError(
            f"{quoted(env['SLURM_TASKS_PER_NODE'])} is a layout of {len(slots)}, "
            f"but {variable}={quoted(env[variable])} names {len(names)} hosts",
            where="SLURM_TASKS_PER_NODE",
            do=_OWN_LIST,
        )
    return _cluster(names, slots, variable, notices)


def _slurm_slots(env: Environment, num_nodes: int) -> tuple[list[int], list[str]]:
    """Tasks of each node, and what to tell about where they come from.

    ``SLURM_TASKS_PER_NODE`` is always set, but without a requested number of tasks Slurm fills it
    with the number of CPUs. ``SLURM_JOB_GPUS`` and its kind hold device ids, so they count nothing.
    """
    layout, per_node = _value(env, "SLURM_TASKS_PER_NODE"), _number(env, "SLURM_NTASKS_PER_NODE")
    requested = per_node is not None or bool(_first(env, "SLURM_NTASKS", "SLURM_NPROCS"))
    if layout and requested:
        slots = expand_counts(layout, "SLURM_TASKS_PER_NODE")
        return slots, _layout_notices(env, max(slots), per_node)
    if per_node is not None:
        return [per_node] * num_nodes, []
    gpus, variable = _gpus_per_node(env)
    if gpus:
        told = f"one rank for each GPU ({variable}={env[variable]})"
        return [gpus] * num_nodes, [f"the job asked for no number of tasks; taking {told}"]
    if layout:
        told = f"Slurm counts one for each CPU (SLURM_TASKS_PER_NODE={layout})"
        return expand_counts(layout, "SLURM_TASKS_PER_NODE"), [
            f"the job asked for no number of tasks; {told}"
        ]
    return [1] * num_nodes, ["the job tells neither tasks nor GPUs; taking one rank for each node"]


def _layout_notices(env: Environment, most: int, per_node: int | None) -> list[str]:
    """What the user should know about a layout with ``most`` tasks on its fullest node."""
    notices = []
    if per_node not in (None, most):
        layout = f"SLURM_TASKS_PER_NODE={env['SLURM_TASKS_PER_NODE']}"
        contradiction = f"SLURM_NTASKS_PER_NODE={per_node} contradicts {layout}"
        notices.append(f"{contradiction}; the latter is the layout and is taken")
    gpus, variable = _gpus_per_node(env)
    if gpus > most:
        notices.append(
            f"{variable}={env[variable]}, but no node has more than {most} task(s): GPUs stay idle"
        )
    return notices


def _gpus_per_node(env: Environment) -> tuple[int, str]:
    """GPUs of each node, 0 where nothing tells it, and the variable.

    ``SLURM_GPUS_PER_NODE`` may name types: ``a100:4``, or ``a100:2,v100:2``. SLURM_GPUS_ON_NODE
    speaks of this node; the others are taken to be like it.
    """
    for variable in ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"):
        text = _value(env, variable)
        if text in ("", "0"):
            continue
        counts = [whole_number(word.rpartition(":")[2], MAX_SLOTS) for word in text.split(",")]
        if None in counts:
            raise InputError(f"{quoted(text)} is no number of GPUs", where=variable, legal="4 or a100:4")
        return sum(count for count in counts if count is not None), variable
    return 0, ""


def _within_job(cluster: Cluster, env: Environment) -> Cluster:
    """Refuses hosts that the Slurm job around has not got; srun would not start on them."""
    nodelist = _value(env, "SLURM_JOB_NODELIST")
    if nodelist:
        given = {machine_key(name) for name in expand_nodelist(nodelist, "SLURM_JOB_NODELIST")}
        for host in cluster.hosts:
            if machine_key(host.name) not in given:
                raise InputError(
                    f"{host.name} is not in SLURM_JOB_NODELIST={quoted(nodelist)}", where=cluster.source
                )
    return cluster


def _lsf_cluster(words: Sequence[str]) -> Cluster:
    """``LSB_MCPU_HOSTS``: names and slots in turn, ``hostA 4 hostB 2``."""
    where = "LSB_MCPU_HOSTS"
    if len(words) % 2:
        raise InputError(f"{quoted(' '.join(words))} has no pairs", where=where, legal="hostA 4 hostB 2")
    names = [parse_host(word, where)[0] for word in words[::2]]
    slots = [parse_slots(word, where) for word in words[1::2]]
    return _cluster(names, slots, where)


def _read_file(env: Environment, variable: str, read: ReadHostfile) -> Cluster:
    cluster = read(Path(env[variable]))
    return Cluster(cluster.hosts, f"{variable} ({cluster.source})", cluster.notices)


def _number(env: Environment, name: str) -> int | None:
    """A count of 1 or more; None where the variable is not set."""
    text = _value(env, name)
    if not text:
        return None
    number = whole_number(text, MAX_SLOTS)
    if number is None:
        raise InputError(
            f"{quoted(text)} is no count", where=name, legal=f"a whole number from 1 to {MAX_SLOTS}"
        )
    return number


def _value(env: Environment, name: str) -> str:
    """A variable's value; one that is set to nothing counts as not set."""
    return env.get(name, "").strip()


def _first(env: Environment, *names: str) -> str:
    return next((name for name in names if _value(env, name)), "")

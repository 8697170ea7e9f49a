"""The facts of this machine and of the allocation around it, put into a plan."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec

from hvdtrain.errors import InputError, LaunchError
from hvdtrain.launch.gpus import count_gpus
from hvdtrain.launch.mpirun import ask_mpirun, find_mpirun
from hvdtrain.launch.network import choose_network, refuse_shared_machine
from hvdtrain.launch.plan import LaunchPlan, SlurmFacts, default_slots
from hvdtrain.launch.probe import slurm_mpi_types
from hvdtrain.topology.hosts import Placement, local_cluster, place
from hvdtrain.topology.nodelist import expand_nodelist


def local_plan(size: int, slots: int | None, environ: Mapping[str, str]) -> LaunchPlan:
    """A plan for ``size`` ranks on this machine, whose program is still to be filled in.

    Args:
        size: Number of ranks.
        slots: Ranks that the user lets this machine take; None takes its GPUs, or else its cores.
        environ: The caller's environment.

    Raises:
        InputError: More ranks than slots.
    """
    cores = len(os.sched_getaffinity(0))
    num_gpus = count_gpus(environ)
    available = slots or default_slots(num_gpus, cores)
    if size > available:
        what = f"--slots {slots}" if slots else f"{num_gpus} GPUs" if num_gpus else f"{cores} CPU cores"
        raise InputError(
            f"-np {size}: more ranks than this machine's {available} slots ({what})",
            legal=f"-np 1 to {available}",
            do="" if slots else f"or pass --slots {size} to let ranks share them",
        )
    return plan_here(place(local_cluster(available), size), environ)


def plan_here(placement: Placement, environ: Mapping[str, str]) -> LaunchPlan:
    """A plan with what this machine knows, whose program is still to be filled in.

    Args:
        placement: Which rank runs where.
        environ: The caller's environment.
    """
    path = find_mpirun(environ, sys.prefix)
    num_gpus = count_gpus(environ)
    plan = LaunchPlan(
        placement=placement,
        program=(),
        python=sys.executable,
        environ=environ,
        mpi=ask_mpirun(path, environ) if path else None,
        cores=len(os.sched_getaffinity(0)),
        uses_gpus=num_gpus > 0,
        is_root=os.geteuid() == 0,
        has_horovodrun=find_spec("horovod") is not None,
    )
    return replace(plan, gpus=(num_gpus,)) if plan.is_local else plan


def refuse_shared_gpus(plan: LaunchPlan) -> None:
    """Refuses a host with more ranks than GPUs before anything is started.

    Slurm hands out GPUs by task, and shows another process of its job fewer or more of them than a rank will
    see; there the ranks themselves look when they start.

    Raises:
        InputError: With both numbers.
    """
    if not plan.uses_gpus or plan.slurm is not None:
        return
    for host, num_gpus in zip(plan.placement.hosts, plan.gpus, strict=False):
        needed = host.slots if host.devices is None else max(host.devices) + 1
        if needed > num_gpus:
            what = f"{host.slots} ranks" if host.devices is None else f"GPU {max(host.devices)}"
            shown = "no GPU" if num_gpus == 0 else "1 GPU" if num_gpus == 1 else f"{num_gpus} GPUs"
            raise InputError(
                f"{what} on {host.name}, which shows {shown}",
                where=plan.placement.source,
                legal="a rank for each GPU",
                do="start fewer ranks on it, or pass --no-gpus for a program that uses none",
            )


def slurm_facts(environ: Mapping[str, str], mpi_type: str = "") -> SlurmFacts | None:
    """The Slurm allocation around; None outside of one.

    Args:
        environ: The caller's environment.
        mpi_type: The type for ``srun --mpi`` that the user or the site named; empty if none.
    """
    nodelist = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if not environ.get("SLURM_JOB_ID") or not nodelist:
        return None
    cpus = environ.get("SLURM_CPUS_PER_TASK", "")
    return SlurmFacts(
        hosts=tuple(expand_nodelist(nodelist)),
        mpi_types=slurm_mpi_types(environ),  # none in many containers: mpirun remains
        mpi_type=mpi_type,
        cpus_per_task=int(cpus) if cpus.isdecimal() else None,
    )


def survey_hosts(
    plan: LaunchPlan, *, is_needed: bool, picks_network: bool = True
) -> tuple[LaunchPlan, tuple[str, ...]]:
    """Asks the hosts of the plan about themselves, and takes what they say into it.

    Args:
        plan: A plan that leaves this machine.
        is_needed: Whether a host that does not answer is an error, or only told of.
        picks_network: Whether to choose the network between several hosts where the plan names none.

    Returns:
        The plan, and what the user should know.

    Raises:
        LaunchError: A host does not answer, and that is an error.
        InputError: Two names are one machine.
    """
    from hvdtrain.launch.survey import ask_hosts

    try:
        reports = ask_hosts(plan)
    except LaunchError as error:
        if is_needed:
            raise
        return plan, (f"the hosts could not be asked about themselves ({error})",)
    refuse_shared_machine(plan.placement, reports)
    picks_network = picks_network and plan.network is None and len(reports) > 1
    network = choose_network(reports) if picks_network else plan.network
    surveyed = replace(
        plan,
        cores=min(one["cores"] for one in reports),
        uses_gpus=any(one["gpus"] for one in reports),
        gpus=tuple(one["gpus"] for one in reports),
        network=network,
    )
    if network is None:
        told = ("the hosts share no network and have no routes to each other",)
        return surveyed, told if picks_network else ()
    where = ", ".join(network.subnets or network.interfaces)
    return surveyed, (f"network {where} by {', '.join(network.interfaces)}",)

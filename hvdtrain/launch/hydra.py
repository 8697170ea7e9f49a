"""Hydra, the mpirun of MPICH and of Intel MPI.

Source: "Using the Hydra Process Manager" of MPICH; "Global Hydra Options" and "Local Options" of the Intel
MPI Library Developer Reference. Hydra takes long options with one dash. Tried over hosts: MPICH 4.0.2, Intel
MPI 2021.19.
"""

from __future__ import annotations

import signal

from hvdtrain.launch.exports import forwarded_names, rank_environment
from hvdtrain.launch.plan import LaunchPlan, agent_argv
from hvdtrain.process import Command

# It hands the first SIGTERM on to the ranks and waits for them; the second one kills (MPICH 4.0.2).
END_SIGNAL = signal.SIGTERM
# It knows no handler for it, so it would end, and the ranks with it.
DEAF_TO = frozenset({signal.SIGUSR2})

# Until this version MPI_Finalize over UCX disconnects from each rank, for which UCX needs that rank's answer,
# and then waits in a barrier of the process manager's, where it answers nobody: a rank that comes later than
# another waits for ever (github.com/pmodels/mpich/pull/6596).
_FINALIZES_OVER_UCX = (4, 2)

# Hydra 4.0.2 leaves the last variable of its own environment out of what -genvlist sends to other hosts.
_LEFT_OUT = {"HVDTRAIN_LAST_VARIABLE": "1"}


def command(plan: LaunchPlan) -> Command:
    """The mpirun command."""
    assert plan.mpi is not None
    is_intel = plan.mpi.vendor == "intel"
    environment = rank_environment(plan)
    if is_intel:
        environment = {**_intel_variables(plan), **environment}
    argv = [plan.mpi.path, *(() if is_intel else ("-bind-to", "none")), *_bootstrap(plan)]
    if not plan.is_local:
        argv += ["-genvlist", ",".join(sorted({*forwarded_names(plan), *environment}))]
        environment = {**environment, **_LEFT_OUT}
        if plan.network is not None:
            argv += ["-iface", plan.network.interfaces[0]]
    return Command((*argv, *_ranks(plan)), environment)


def notes(plan: LaunchPlan) -> tuple[str, ...]:
    """What was chosen without being asked for, and what the user should know of this MPI."""
    assert plan.mpi is not None
    if plan.mpi.vendor == "intel" and "I_MPI_THREAD_YIELD" in _intel_variables(plan):
        return ("waiting ranks yield their core (I_MPI_THREAD_YIELD)",)
    return warnings(plan)


def warnings(plan: LaunchPlan) -> tuple[str, ...]:
    """What may go wrong with this MPI, and no setting cures."""
    assert plan.mpi is not None
    if not _may_not_end(plan):
        return ()
    version = ".".join(map(str, plan.mpi.version))
    return (f"MPICH {version} over UCX may hang in MPI_Finalize, when the work is done; MPICH 4.2 does not",)


def _may_not_end(plan: LaunchPlan) -> bool:
    """Whether ranks may hang when they are done."""
    assert plan.mpi is not None
    is_old = plan.mpi.device == "ch4:ucx" and plan.mpi.version < _FINALIZES_OVER_UCX
    return is_old and not plan.is_one_host


def _ranks(plan: LaunchPlan) -> tuple[str, ...]:
    """How many ranks on which host, and what they run.

    MPICH reads slots from its list of hosts. Intel MPI does not; it takes a number for all hosts, or, where
    they are unequal, an argument set for each.
    """
    assert plan.mpi is not None
    hosts, agent = plan.placement.hosts, agent_argv(plan)
    if plan.mpi.vendor == "mpich":
        listed = ",".join(f"{host.name}:{host.slots}" for host in hosts)
        return ("-n", str(plan.size), "-hosts", listed, *agent)
    if len({host.slots for host in hosts}) == 1:
        listed = ",".join(host.name for host in hosts)
        return ("-n", str(plan.size), "-ppn", str(hosts[0].slots), "-hosts", listed, *agent)
    words: list[str] = []
    for host in hosts:
        words += [":"] if words else []
        words += ["-host", host.name, "-n", str(host.slots), *agent]
    return tuple(words)


def _bootstrap(plan: LaunchPlan) -> tuple[str, ...]:
    """How Hydra starts its proxies; inside a Slurm allocation it finds srun by itself."""
    if plan.is_local or plan.slurm is not None:
        return ()
    arguments = plan.ssh.arguments
    return ("-bootstrap", "ssh", *(("-bootstrap-exec-args", " ".join(arguments)) if arguments else ()))


def _intel_variables(plan: LaunchPlan) -> dict[str, str]:
    """Intel MPI takes as variables what others take as options; the caller's own settings come first."""
    chosen = {"I_MPI_PIN": "off"}
    if plan.is_crowded or not plan.uses_gpus:
        chosen["I_MPI_THREAD_YIELD"] = "2"  # a waiting rank calls sched_yield
    return {name: value for name, value in chosen.items() if name not in plan.environ}

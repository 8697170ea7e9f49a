"""Horovod Elastic: ranks that come and go, started by horovodrun over Gloo.

Horovod gives up a whole host when one rank on it fails, and does not come back to it. So on this machine each
slot goes by a name of its own: the address of the local host with more and more zeros, which all mean the
same (inet_aton(3)) and are none the less different names.

Source: Horovod 0.28.1, ``runner/launch.py``, ``runner/gloo_run.py``, ``runner/elastic/``.
"""

from __future__ import annotations

import shlex
import signal
from dataclasses import dataclass, replace
from pathlib import Path

from hvdtrain.launch.exports import rank_environment, thread_note
from hvdtrain.launch.horovodrun import withheld
from hvdtrain.launch.plan import AGENT, LaunchPlan, agent_argv
from hvdtrain.launch.seat import SLOTS
from hvdtrain.process import Command
from hvdtrain.topology.launchers import RANKS_PER_HOST

# A new rank has to load PyTorch before the others, who wait for it, lose patience; Horovod's own is 30 s.
_PATIENCE = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "120"}
# On one machine nothing comes back for which a job with too few ranks could wait.
_LOCAL_WAIT_S = 5


@dataclass(frozen=True)
class Elastic:
    """Starts ranks with Horovod Elastic, as many as there are slots.

    Attributes:
        start: Ranks to begin with.
        least: Ranks without which the job waits for hosts, and fails in the end.
        most: Ranks that there may be; None sets no limit.
        discovery: The command that tells the hosts of now.
        gpus: The GPU of each slot of this machine, which are hosts of their own to Horovod; empty elsewhere.
    """

    start: int
    least: int
    most: int | None
    discovery: tuple[str, ...]
    gpus: tuple[int, ...] = ()
    name: str = "elastic"

    def refusal(self, plan: LaunchPlan) -> str:
        """Why it cannot start the plan; empty if it can."""
        if not plan.has_horovodrun:
            return "Horovod is not installed here; build it with hvdtrain build-horovod"
        if any(":" in host.name for host in plan.placement.hosts):
            return "Horovod does not read IPv6 addresses"
        if " " in plan.ssh.identity:
            return f"Horovod splits --ssh-identity at blanks: {plan.ssh.identity!r}; use ~/.ssh/config"
        here = str(Path.cwd())
        if not plan.is_local and shlex.quote(here) != here:
            return f"the shells of other hosts would take the working folder {here!r} apart"
        if not plan.is_local and plan.network is None:
            return "the network between the hosts is not known; name its card with --nic"
        return ""

    def end_signal(self, plan: LaunchPlan) -> signal.Signals:  # noqa: ARG002
        """The signal on which horovodrun asks the ranks to end; it leaves them 5 s."""
        return signal.SIGTERM

    def command(self, plan: LaunchPlan) -> Command:
        """The horovodrun command, in an environment of named variables only: it sends all that it has."""
        cards = ("lo",) if plan.is_local or plan.network is None else plan.network.interfaces
        argv = [plan.python, "-P", "-m", "horovod.runner.launch", "--gloo", "-np", str(self.start)]
        argv += ["--min-np", str(self.least)]
        argv += [] if self.most is None else ["--max-np", str(self.most)]
        # Horovod hands it to a shell.
        argv += ["--host-discovery-script", shlex.join(self.discovery)]
        argv += ["--network-interfaces", ",".join(cards)]
        if plan.is_local:
            argv += ["--elastic-timeout", str(_LOCAL_WAIT_S)]
        if plan.ssh.port is not None:
            argv += ["--ssh-port", str(plan.ssh.port)]
        if plan.ssh.identity:
            argv += ["--ssh-identity-file", plan.ssh.identity]
        chosen = {name: value for name, value in _PATIENCE.items() if not plan.environ.get(name)}
        env = {**chosen, **rank_environment(plan)}
        env.pop(RANKS_PER_HOST, None)  # it holds for the first world only
        return Command((*argv, *_agent(plan, self.gpus)), env, withheld(plan))

    def notes(self, plan: LaunchPlan) -> tuple[str, ...]:
        """What was chosen without being asked for."""
        told = "a rank that fails takes its host's other ranks with it, and the host stays out"
        return thread_note(plan) + (() if plan.is_local else (told,))


def local_slots(size: int) -> str:
    """The slots of this machine as so many hosts, for ``discover.py list``."""
    return ",".join(f"127.0.0.{'0' * slot}1:1" for slot in range(size))


def _agent(plan: LaunchPlan, gpus: tuple[int, ...]) -> tuple[str, ...]:
    """The rank agent; where each slot is a host of its own, all are local rank 0: the slot tells the GPU."""
    if not (gpus and plan.uses_gpus):
        return agent_argv(plan)
    words = agent_argv(replace(plan, uses_gpus=False))
    after = words.index(AGENT) + 1
    return (*words[:after], "--gpus", f"{SLOTS}:{','.join(map(str, gpus))}", *words[after:])

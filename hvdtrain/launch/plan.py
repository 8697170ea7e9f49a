"""What is to be started, and the protocol of the things that know how to start it."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hvdtrain.launch.names import is_this_machine
from hvdtrain.process import Command
from hvdtrain.topology.hosts import Placement

# The rank agent's file, at the same path on every host.
AGENT = str(Path(__file__).with_name("startup") / "agent.py")


@dataclass(frozen=True)
class MpiFacts:
    """An mpirun that was found and asked for its version.

    Attributes:
        path: The program, absolute.
        vendor: ``openmpi``, ``mpich`` or ``intel``.
        version: For example (5, 0, 11).
        prefix: The installation's root, the folder above ``bin``.
        device: How an MPICH reaches other hosts, ``ch4:ucx`` or ``ch4:ofi``; empty where it does not tell.
    """

    path: str
    vendor: str
    version: tuple[int, ...]
    prefix: str
    device: str = ""


@dataclass(frozen=True)
class SlurmFacts:
    """The Slurm allocation around this process.

    Attributes:
        hosts: Its hosts in Slurm's order, in which srun fills them.
        mpi_types: What ``srun --mpi=list`` names.
        mpi_type: The type that the user asked for; empty leaves the choice to us.
        cpus_per_task: CPUs of each task, as the job asked for; None where it asked for none.
    """

    hosts: tuple[str, ...]
    mpi_types: tuple[str, ...] = ()
    mpi_type: str = ""
    cpus_per_task: int | None = None


@dataclass(frozen=True)
class Network:
    """The network between the hosts.

    Attributes:
        interfaces: Names of the network cards that lead to it, on any host.
        subnets: The same as addresses, ``10.0.0.0/24``; empty where the hosts only have routes to each other.
    """

    interfaces: tuple[str, ...]
    subnets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ssh:
    """How other hosts are reached, where ``~/.ssh/config`` does not say it."""

    port: int | None = None
    identity: str = ""

    @property
    def arguments(self) -> tuple[str, ...]:
        """The options for ssh."""
        port = () if self.port is None else ("-p", str(self.port))
        return (*port, "-i", self.identity) if self.identity else port


@dataclass(frozen=True)
class LaunchPlan:
    """Everything that a launcher needs to know; facts are gathered by the caller.

    Attributes:
        placement: Which rank runs where.
        program: What every rank runs: program and arguments.
        python: The interpreter that runs the rank agents, on every host at the same path.
        environ: The caller's environment, ``os.environ`` at the edge.
        env: Variables set for the ranks on top of it.
        exported: Variables of the caller's that the user named to go along.
        prefix: Words before the program: a container's or a module system's.
        log_dir: Folder for ``rank-N.log``, written on the rank's host; None writes none.
        mpi: The mpirun that was found; None if there is none.
        cores: Cores that this process may use, ``len(os.sched_getaffinity(0))``. Other hosts are taken
            to have as many, unless they were asked.
        uses_gpus: Whether the ranks compute on GPUs.
        gpus: GPUs that each host of the placement shows; empty where nobody asked them.
        is_root: Whether the caller is root, whom Open MPI refuses by default.
        bind: What each rank is bound to: ``none``, ``core``, ``numa`` or ``gpu``.
        network: The network that MPI and NCCL are to use; None leaves it to them.
        ssh: How other hosts are reached.
        slurm: The allocation around; None outside of one.
        has_horovodrun: Whether Horovod, and so its launcher, is installed here.
    """

    placement: Placement
    program: tuple[str, ...]
    python: str
    environ: Mapping[str, str]
    env: Mapping[str, str] = field(default_factory=dict)
    exported: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    log_dir: Path | None = None
    mpi: MpiFacts | None = None
    cores: int = 1
    uses_gpus: bool = False
    gpus: tuple[int, ...] = ()
    is_root: bool = False
    bind: str = "none"
    network: Network | None = None
    ssh: Ssh = Ssh()
    slurm: SlurmFacts | None = None
    has_horovodrun: bool = False

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.placement.size

    @property
    def max_local_size(self) -> int:
        """The number of ranks on the fullest host."""
        return max(host.slots for host in self.placement.hosts)

    @property
    def is_one_host(self) -> bool:
        """Whether all ranks run on one host, which is this one only if it is named so."""
        return len(self.placement.hosts) == 1

    @property
    def is_local(self) -> bool:
        """Whether all ranks run on this machine: nothing has to be told to, or asked of, another one."""
        return self.is_one_host and is_this_machine(self.placement.hosts[0].name)

    @property
    def is_crowded(self) -> bool:
        """Whether ranks outnumber the cores of a host."""
        return self.max_local_size > self.cores

    @property
    def cores_per_rank(self) -> int | None:
        """Cores that the user gives each rank; None where nothing was said."""
        cores = self.placement.ranks[0].cores
        return None if cores is None else len(cores)


class Launcher(Protocol):
    """One way to start ranks; stateless, one file each."""

    @property
    def name(self) -> str:
        """The word for ``--launcher``."""

    def refusal(self, plan: LaunchPlan) -> str:
        """Why this launcher cannot start the plan; empty if it can."""

    def command(self, plan: LaunchPlan) -> Command:
        """The command that starts the plan, for plans that are not refused."""

    def end_signal(self, plan: LaunchPlan) -> signal.Signals:
        """The signal to that command on which it asks the ranks to end and leaves them their time."""

    def notes(self, plan: LaunchPlan) -> tuple[str, ...]:
        """What the launcher chose on its own, one sentence each, for the user to read."""


def default_slots(num_gpus: int, cores: int) -> int:
    """Slots of this machine unless the user says otherwise: one per GPU, or else one per core."""
    return num_gpus or cores


def agent_argv(plan: LaunchPlan) -> tuple[str, ...]:
    """What a launcher starts once per rank: the rank agent around the program."""
    agent = (plan.python, "-I", "-S", AGENT)
    program = (*plan.prefix, *plan.program)
    if ":" in program:
        # To mpirun and srun a lone colon is the beginning of another program, wherever it stands.
        return (*agent, *_agent_options(plan), "--program", json.dumps(program))
    return (*agent, *_agent_options(plan), "--", *program)


def _agent_options(plan: LaunchPlan) -> tuple[str, ...]:
    options: list[str] = []
    if plan.log_dir is not None:
        options += ["--log-dir", str(plan.log_dir)]
    if plan.bind != "none":
        per_rank = plan.cores_per_rank
        options += ["--bind", plan.bind if per_rank is None else f"{plan.bind}:{per_rank}"]
    if not plan.is_local:
        options += ["--beat", "1"]
    if plan.uses_gpus:
        options += ["--gpus", _devices(plan) or "all"]
    return tuple(options)


def _devices(plan: LaunchPlan) -> str:
    """The GPU of each rank, ``2,0,0,1``; empty where each rank takes the GPU of its local rank."""
    if all(host.devices is None for host in plan.placement.hosts):
        return ""
    return ",".join(str(place.device) for place in plan.placement.ranks)

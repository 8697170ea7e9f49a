"""What is to be started, and the protocol of the things that know how to start it."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hvdtrain.process import Command
from hvdtrain.topology.hosts import Placement
from hvdtrain.topology.launchers import RANKS_PER_HOST
from hvdtrain.topology.nodelist import fold_counts

# What a rank on another host is given by name; everything else stays on this host.
_FORWARDED = re.compile(
    r"(HOROVOD_|HVDTRAIN_|NCCL_|UCX_|OMPI_MCA_|PYTHON)\w*|PATH|LD_LIBRARY_PATH|OMP_NUM_THREADS"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|PRIVATE|AUTH|(^|_)(API|ACCESS)?_?KEY(S|_|$)")


@dataclass(frozen=True)
class MpiFacts:
    """An mpirun that was found and asked for its version.

    Attributes:
        path: The program, absolute.
        vendor: ``openmpi``, ``mpich`` or ``intel``.
        version: For example (5, 0, 11).
        prefix: The installation's root, the folder above ``bin``.
    """

    path: str
    vendor: str
    version: tuple[int, ...]
    prefix: str


@dataclass(frozen=True)
class LaunchPlan:
    """Everything that a launcher needs to know; facts are gathered by the caller.

    Attributes:
        placement: Which rank runs where.
        program: What every rank runs: program and arguments.
        python: The interpreter that runs the rank agents, on every host at the same path.
        environ: The caller's environment, ``os.environ`` at the edge.
        env: Variables set for the ranks on top of it.
        log_dir: Folder for ``rank-N.log``, written on the rank's host; None writes none.
        mpi: The mpirun that was found; None if there is none.
        cores: Cores that this process may use, ``len(os.sched_getaffinity(0))``. Other hosts are taken
            to have as many.
        uses_gpus: Whether the ranks compute on GPUs.
        is_root: Whether the caller is root, whom Open MPI refuses by default.
    """

    placement: Placement
    program: tuple[str, ...]
    python: str
    environ: Mapping[str, str]
    env: Mapping[str, str] = field(default_factory=dict)
    log_dir: Path | None = None
    mpi: MpiFacts | None = None
    cores: int = 1
    uses_gpus: bool = False
    is_root: bool = False

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


class Launcher(Protocol):
    """One way to start ranks; stateless, one file each."""

    @property
    def name(self) -> str:
        """The word for ``--launcher``."""

    @property
    def end_signal(self) -> signal.Signals:
        """The signal to the command on which it asks the ranks to end and leaves them their time."""

    def refusal(self, plan: LaunchPlan) -> str:
        """Why this launcher cannot start the plan; empty if it can."""

    def command(self, plan: LaunchPlan) -> Command:
        """The command that starts the plan, for plans that are not refused."""

    def notes(self, plan: LaunchPlan) -> tuple[str, ...]:
        """What the launcher chose on its own, one sentence each, for the user to read."""


def default_slots(num_gpus: int, cores: int) -> int:
    """Slots of this machine unless the user says otherwise: one per GPU, or else one per core."""
    return num_gpus or cores


def agent_argv(plan: LaunchPlan) -> tuple[str, ...]:
    """What a launcher starts once per rank: the rank agent around the program."""
    # -P: without it the working folder's own json.py or signal.py would be imported instead of Python's.
    words = (plan.python, "-P", "-m", "hvdtrain.launch.rank_agent")
    logs = () if plan.log_dir is None else ("--log-dir", str(plan.log_dir))
    return (*words, *logs, "--", *plan.program)


def rank_environment(plan: LaunchPlan) -> dict[str, str]:
    """Variables that every launcher sets for the ranks, the caller's own settings first.

    ``OMP_NUM_THREADS`` divides the cores among the ranks of a host: PyTorch's default, all cores for each
    rank, lets them fight. ``PYTHONUNBUFFERED`` makes output appear when it is printed: a rank's
    stdout is a pipe, which Python would fill up to 8 KB first.
    """
    chosen = {"OMP_NUM_THREADS": str(num_threads(plan)), "PYTHONUNBUFFERED": "1"}
    kept = {name: value for name, value in chosen.items() if not plan.environ.get(name)}
    if not plan.is_one_host:
        kept[RANKS_PER_HOST] = fold_counts([host.slots for host in plan.placement.hosts])
    return {**kept, **plan.env}


def num_threads(plan: LaunchPlan) -> int:
    """Threads for each rank when the user named no number."""
    return max(1, plan.cores // plan.max_local_size)


def thread_note(plan: LaunchPlan) -> tuple[str, ...]:
    """Says the number of threads where the plan chose it."""
    if plan.environ.get("OMP_NUM_THREADS") or "OMP_NUM_THREADS" in plan.env:
        return ()
    ranks = plan.max_local_size
    return (f"OMP_NUM_THREADS={num_threads(plan)}: {plan.cores} cores, {ranks} ranks on a host",)


def forwarded_names(plan: LaunchPlan) -> tuple[str, ...]:
    """Names of the variables that ranks on other hosts are given, sorted; none that looks like a secret.

    CUDA_VISIBLE_DEVICES goes along only where the plan sets it: the caller's is about this host's GPUs.
    """
    names = {name for name in plan.environ if _FORWARDED.fullmatch(name)}
    names |= set(rank_environment(plan))
    return tuple(sorted(name for name in names if not _SECRET.search(name.upper())))

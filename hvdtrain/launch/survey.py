"""Asks the hosts of a launch about themselves: over ssh, or inside a Slurm allocation with srun."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hvdtrain.errors import LaunchError
from hvdtrain.launch.host_report import report
from hvdtrain.launch.names import is_this_machine
from hvdtrain.launch.plan import LaunchPlan
from hvdtrain.process import Command, Completed, command, run
from hvdtrain.topology.names import machine_key

_AT_ONCE = 32
_TIMEOUT_S = 20.0
# Never a question that nobody is there to answer.
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")


def ask_hosts(plan: LaunchPlan) -> list[dict[str, Any]]:
    """The report of each host of the plan, in the plan's order (see ``host_report``).

    Raises:
        LaunchError: A host cannot be reached, or has no hvdtrain at the same path.
    """
    names = [host.name for host in plan.placement.hosts]
    if plan.slurm is not None:
        return _ask_step(plan, names)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda name: _ask(plan, name, names), names))


def remote_argv(plan: LaunchPlan, host: str, words: Sequence[str]) -> tuple[str, ...]:
    """The ssh command that runs words on a host; the shell there takes them apart again."""
    return (*_SSH, *plan.ssh.arguments, "--", host, shlex.join(words))


def _ask(plan: LaunchPlan, host: str, names: Sequence[str]) -> dict[str, Any]:
    peers = [name for name in names if name != host][:_AT_ONCE]
    if is_this_machine(host):
        return report(peers)
    words = (plan.python, "-P", "-m", "hvdtrain.launch.host_report", *peers)
    done = _run(command(*remote_argv(plan, host, words)), f"host {host}", plan.environ)
    return _parse(done, f"host {host}")[0]


def _ask_step(plan: LaunchPlan, names: Sequence[str]) -> list[dict[str, Any]]:
    """One task on each host; beside other steps of the job, and without MPI."""
    argv = ["srun", "--mpi=none", "--overlap", "--cpu-bind=none", f"--nodes={len(names)}"]
    argv += [f"--ntasks={len(names)}", "--ntasks-per-node=1", f"--nodelist={','.join(names)}"]
    argv += [plan.python, "-P", "-m", "hvdtrain.launch.host_report", *names[:_AT_ONCE]]
    told = _parse(_run(command(*argv), "srun", plan.environ), "srun")
    by_host = {machine_key(one["host"].partition(".")[0]): one for one in told}
    found = [by_host.get(machine_key(name.partition(".")[0])) for name in names]
    if None in found:
        raise LaunchError(f"srun asked {', '.join(names)}, and {', '.join(by_host)} answered")
    return [one for one in found if one is not None]


def _run(cmd: Command, who: str, environ: Mapping[str, str]) -> Completed:
    try:
        return run(cmd, timeout_s=_TIMEOUT_S, base_env=environ)
    except TimeoutError:
        raise LaunchError(f"{who} does not answer within {_TIMEOUT_S:g} s") from None
    except FileNotFoundError:
        raise LaunchError(f"{who} cannot be asked: {cmd.argv[0]} is not installed") from None


def _parse(done: Completed, who: str) -> list[dict[str, Any]]:
    """The reports in what was printed; a login script may have printed more."""
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"host"')]
    if done.returncode or not lines:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        why = said[-1] if said else f"exit code {done.returncode}"
        raise LaunchError(f"{who} cannot be asked about itself: {why}")
    return [json.loads(line) for line in lines]

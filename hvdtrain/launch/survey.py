"""Asks the hosts of a launch about themselves: over ssh, or inside a Slurm allocation with srun."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock, Timer
from typing import Any, TypeVar

from hvdtrain.errors import ExitCode, LaunchError
from hvdtrain.launch.host_report import report
from hvdtrain.launch.names import own_names
from hvdtrain.launch.plan import LaunchPlan
from hvdtrain.process import Command, Completed, Process, command, end_group, spawn
from hvdtrain.topology.names import machine_key, names_machine

Answer = TypeVar("Answer")

_AT_ONCE = 32
_TIMEOUT_S = 20.0
_UNKNOWN = "could not resolve hostname"  # ssh(1), whatever of the resolver follows
# Never a question that nobody is there to answer.
# No shared connection either: the one that stays behind it would hold our pipes open.
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ControlPath=none")


class UnknownHostError(LaunchError):
    """A host's name leads nowhere: the user's input is wrong."""

    exit_code = ExitCode.USAGE


def ask_hosts(plan: LaunchPlan) -> list[dict[str, Any]]:
    """The report of each host of the plan, in the plan's order (see ``host_report``).

    Raises:
        LaunchError: A host cannot be reached, or has no hvdtrain at the same path; ``UnknownHostError`` where
            there is no host of its name.
    """
    names = [host.name for host in plan.placement.hosts]
    questions = _Questions(plan.environ)
    if plan.slurm is not None:
        return _ask_step(plan, names, questions)
    return _at_once(_one_by_one(plan, names, questions), names, questions)


def ask_each(plan: LaunchPlan, names: Sequence[str]) -> dict[str, dict[str, Any] | str]:
    """The report of each host, or why it gave none: for a job of which a host may be gone.

    Args:
        plan: How hosts are reached, and from where.
        names: Of the hosts, which need not be those of the plan.
    """
    questions = _Questions(plan.environ)
    one = _one_by_one(plan, names, questions)

    def ask(name: str) -> dict[str, Any] | str:
        try:
            return one(name) if plan.slurm is None else _ask_step(plan, [name], questions)[0]
        except LaunchError as error:
            return str(error)

    return dict(zip(names, _at_once(ask, names, questions), strict=True))


def _one_by_one(
    plan: LaunchPlan, names: Sequence[str], questions: _Questions
) -> Callable[[str], dict[str, Any]]:
    """Asks one of the hosts: this machine itself, or over ssh."""
    own = own_names()

    def ask(name: str) -> dict[str, Any]:
        peers = [peer for peer in names if peer != name][:_AT_ONCE]
        return report(peers) if names_machine(name, own) else _ask(plan, name, peers, questions)

    return ask


def _at_once(ask: Callable[[str], Answer], names: Sequence[str], questions: _Questions) -> list[Answer]:
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        return list(pool.map(ask, names))
    finally:  # Ctrl-C, or one host that does not answer, waits for no other
        questions.end()
        pool.shutdown(cancel_futures=True)


def remote_argv(plan: LaunchPlan, host: str, words: Sequence[str]) -> tuple[str, ...]:
    """The ssh command that runs words on a host; the shell there takes them apart again."""
    return (*_SSH, *plan.ssh.arguments, "--", host, shlex.join(words))


def _ask(plan: LaunchPlan, host: str, peers: Sequence[str], questions: _Questions) -> dict[str, Any]:
    words = (plan.python, "-P", "-m", "hvdtrain.launch.host_report", *peers)
    done = questions.ask(command(*remote_argv(plan, host, words)), f"host {host}")
    return _parse(done, f"host {host}")[0]


def _ask_step(plan: LaunchPlan, names: Sequence[str], questions: _Questions) -> list[dict[str, Any]]:
    """One task on each host; beside other steps of the job, and without MPI."""
    argv = ["srun", "--mpi=none", "--overlap", "--cpu-bind=none", f"--nodes={len(names)}"]
    argv += [f"--ntasks={len(names)}", "--ntasks-per-node=1", f"--nodelist={','.join(names)}"]
    argv += [plan.python, "-P", "-m", "hvdtrain.launch.host_report", *names[:_AT_ONCE]]
    told = _parse(questions.ask(command(*argv), "srun"), "srun")
    by_host = {machine_key(one["host"].partition(".")[0]): one for one in told}
    found = [by_host.get(machine_key(name.partition(".")[0])) for name in names]
    if None in found:
        raise LaunchError(f"srun asked {', '.join(names)}, and {', '.join(by_host)} answered")
    return [one for one in found if one is not None]


class _Questions:
    """Commands that run at the same time, each in a thread, and can be ended together."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._lock = Lock()
        self._running: set[int] = set()
        self._is_over = False

    def ask(self, cmd: Command, who: str) -> Completed:
        """Runs a command to its end, at most ``_TIMEOUT_S``.

        Raises:
            LaunchError: It did not end in time, is not installed, or ``end`` was called.
        """
        process = self._start(cmd, who)
        is_late = Event()

        def cut() -> None:
            is_late.set()
            end_group(process.pid, grace_s=0.0)

        timer = Timer(_TIMEOUT_S, cut)
        timer.start()
        try:
            out, err = process.communicate()
        except BaseException:
            end_group(process.pid)
            process.wait()
            raise
        finally:
            timer.cancel()
            with self._lock:
                self._running.discard(process.pid)
        if is_late.is_set():
            raise LaunchError(f"{who} does not answer within {_TIMEOUT_S:g} s")
        return Completed(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))

    def end(self) -> None:
        """Kills what still runs, and lets nothing more start."""
        with self._lock:
            self._is_over = True
            for pid in self._running:
                end_group(pid, grace_s=0.0)

    def _start(self, cmd: Command, who: str) -> Process:
        with self._lock:
            if self._is_over:
                raise LaunchError(f"{who} was not asked")
            try:
                process = spawn(cmd, base_env=self._environ)
            except FileNotFoundError:
                raise LaunchError(f"{who} cannot be asked: {cmd.argv[0]} is not installed") from None
            self._running.add(process.pid)
            return process


def _parse(done: Completed, who: str) -> list[dict[str, Any]]:
    """The reports in what was printed; a login script may have printed more."""
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"host"')]
    if done.returncode or not lines:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        why = said[-1] if said else f"exit code {done.returncode}"
        if _UNKNOWN in why.lower():
            raise UnknownHostError(f"{who}: there is no host of this name; correct it in the list of hosts")
        raise LaunchError(f"{who} cannot be asked about itself: {why}")
    return [json.loads(line) for line in lines]

"""Starts the ranks of one host without MPI, with the variables that torchrun sets.

``python -m hvdtrain.launch.local NUM AGENT ...`` is to this launcher what mpirun is to the other: it stays
until all ranks ended, and ends them all when one fails.

Source: torchrun's "Environment Variables" (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK,
MASTER_ADDR, MASTER_PORT).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from hvdtrain.launch.exports import rank_environment, rank_marks, thread_note
from hvdtrain.launch.names import is_this_machine
from hvdtrain.launch.plan import LaunchPlan, agent_argv
from hvdtrain.launch.signals import ENDING, signals_to
from hvdtrain.process import Command, Process, end_group, spawn

_FAIL_GRACE_S = 2.0  # what the other ranks get between SIGTERM and SIGKILL after one failed


@dataclass(frozen=True)
class Local:
    """Starts the ranks of this host without MPI."""

    name: str = "local"

    def refusal(self, plan: LaunchPlan) -> str:
        """Why this launcher cannot start the plan; empty if it can."""
        hosts = [host.name for host in plan.placement.hosts]
        if len(hosts) > 1 or not is_this_machine(hosts[0]):
            return f"it starts ranks on this machine only, not on {', '.join(hosts)}"
        return ""

    def end_signal(self, plan: LaunchPlan) -> signal.Signals:  # noqa: ARG002
        """The signal that asks the ranks to end; it is handed on as it is."""
        return signal.SIGTERM

    def command(self, plan: LaunchPlan) -> Command:
        """The command that starts every rank here."""
        argv = (plan.python, "-P", "-m", "hvdtrain.launch.local", str(plan.size), *agent_argv(plan))
        return Command(argv, rank_environment(plan), rank_marks(plan.environ))

    def notes(self, plan: LaunchPlan) -> tuple[str, ...]:
        """What was chosen without being asked for."""
        return thread_note(plan)


def rank_variables(rank: int, size: int, master_port: int) -> dict[str, str]:
    """The variables that tell one rank of a single host who it is."""
    return {
        "HVDTRAIN_LOCAL_LAUNCH": "1",
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(master_port),
    }


@dataclass
class Ranks:
    """The started ranks of this host."""

    processes: list[Process] = field(default_factory=list)
    end_at: float = float("inf")
    is_ending: bool = False

    def start(self, size: int, agent: Sequence[str], master_port: int) -> None:
        """Starts rank 0 to ``size - 1``; each ends when this process does."""
        for rank in range(size):
            if self.is_ending:
                break
            cmd = Command(tuple(agent), rank_variables(rank, size, master_port))
            self.processes.append(spawn(cmd, is_piped=False, death_signal=signal.SIGTERM))

    def signal(self, number: int) -> None:
        """Hands a signal on to every rank that still runs."""
        self.is_ending = self.is_ending or number in ENDING
        for process in self.running():
            process.send_signal(number)

    def running(self) -> list[Process]:
        """The ranks that did not end yet."""
        return [process for process in self.processes if process.poll() is None]

    def wait(self) -> int:
        """Waits for all ranks; returns 0, or the exit code of the first that failed."""
        first = 0
        while running := self.running():
            if self.end_at == float("inf"):
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            else:
                time.sleep(0.02)
            for process in running:
                code = process.poll()
                if code and not first:
                    first = 128 - code if code < 0 else code
                    self.end_at = time.monotonic() + _FAIL_GRACE_S
                    self.signal(signal.SIGTERM)
            if time.monotonic() > self.end_at:
                self.end()
                self.end_at = time.monotonic() + _FAIL_GRACE_S
        return first

    def end(self) -> None:
        """Kills what still runs; the agents, asked again, kill all that their programs started."""
        for process in self.running():
            end_group(process.pid, grace_s=1.0)


def main(argv: Sequence[str]) -> int:
    """Starts ``argv[0]`` times the agent ``argv[1:]``; returns 0 or the first failed rank's exit code."""
    size, agent = int(argv[0]), argv[1:]
    ranks = Ranks()
    with signals_to(ranks.signal):
        try:
            ranks.start(size, agent, _free_port())
            return ranks.wait()
        finally:
            ranks.end()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The lab as fixtures: hosts of their own, and Slurm on them, once per session.

Machines that cannot hold a lab skip these tests; with HVDTRAIN_LAB=require they fail.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from hvdtrain.process import Command, Completed, Process, end_group, run, spawn

SCRIPT = Path(__file__).parent / "lab"
# What a launcher around these tests has set would make every process in the lab its rank.
LAUNCHERS = ("SLURM", "OMPI_", "PMI", "PRTE_", "HOROVOD_", "HVDTRAIN_", "TORCHELASTIC_", "MASTER_", "OMP_")
DEFAULTS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",  # more ranks than cores
    "OMP_NUM_THREADS": "1",  # and so that sums do not depend on the number of cores
}


class Lab:
    """A lab that is up.

    Attributes:
        folder: Its state: logs and keys. Below it, ``env`` leads to the environment that runs these tests.
        hosts: The compute hosts' names; ``head`` is the login node.
        python: This environment's Python.
        env: What processes in the lab find in their environment.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hosts = tuple(_call(folder, "hosts").split())
        # The remote shells of MPI launchers split paths at blanks, and a clone's path may hold some.
        self._prefix = folder / "env"
        self.python = str(self._prefix / "bin" / "python")
        self.env = {**DEFAULTS, "PATH": _path(folder)}

    @property
    def slurm_env(self) -> dict[str, str]:
        """What Slurm's commands need; they run in any host."""
        return {"SLURM_CONF": str(self.folder / "slurm" / "slurm.conf")}

    def exec(
        self,
        host: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 60,
    ) -> Completed:
        """Runs a command in a host to its end; ``timeout`` in seconds raises TimeoutError."""
        return run(self._command(host, argv, env, cwd), timeout_s=timeout)

    def start(
        self,
        host: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Process:
        """Starts a command in a host, its output in pipes; the caller ends it with ``end_group``."""
        return spawn(self._command(host, argv, env, cwd))

    def mpirun(self, *hosts: str, slots: int = 1) -> list[str]:
        """The words that start ``slots`` ranks on each host, with this environment's MPI if it has one."""
        words = [
            "mpirun",
            "-np",
            str(len(hosts) * slots),
            "-H",
            ",".join(f"{host}:{slots}" for host in hosts),
        ]
        words += ["--bind-to", "none", "--map-by", "slot"]
        return words + (["--prefix", str(self._prefix)] if (self._prefix / "bin" / "mpirun").exists() else [])

    def cut(self, host: str) -> None:
        """Pulls a host's network cable out."""
        self._do("cut", host)

    def heal(self, host: str) -> None:
        """Puts it in again."""
        self._do("heal", host)

    def crash(self, host: str) -> None:
        """Kills every process of a host; its peers see their connections close."""
        self._do("crash", host)

    def poweroff(self, host: str) -> None:
        """The same without a word to the peers, as at a power loss."""
        self._do("poweroff", host)

    def poweron(self, host: str) -> None:
        """Starts a host that is off; without its slurmd."""
        self._do("poweron", host)

    def restart_slurmd(self, host: str) -> None:
        """Starts a host's slurmd if it is not there."""
        self._do("slurmd", host)

    def rate(self, host: str, rate: str = "none") -> None:
        """Limits both directions, in tc's words: ``100mbit``."""
        self._do("rate", host, rate)

    def delay(self, host: str, delay_us: int = 0) -> None:
        """Delays what the host sends, in microseconds; set it before a rate."""
        self._do("delay", host, str(delay_us) if delay_us else "none")

    def sent_bytes(self, host: str) -> int:
        """What the host has sent into the network since its cable was put in."""
        return int(self._do("sent", host))

    def processes(self, host: str) -> list[tuple[int, str]]:
        """Pid, as this machine sees it, and command of each process that is not the lab's own."""
        lines = (line.partition(" ") for line in self._do("processes", host).splitlines())
        return [(int(pid), words.strip()) for pid, _, words in lines]

    def left_over(self, host: str, patience_s: float = 10) -> list[tuple[int, str]]:
        """Processes that are still there after at most ``patience_s``: daemons take a moment to end."""
        deadline = time.monotonic() + patience_s
        while (found := self.processes(host)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def _command(
        self, host: str, argv: Sequence[str], env: Mapping[str, str] | None, cwd: Path | None
    ) -> Command:
        unset = tuple(name for name in os.environ if name.startswith(LAUNCHERS))
        variables = {**self.env, **(env or {}), "LAB": str(self.folder)}
        return Command((str(SCRIPT), "exec", host, *argv), variables, unset, cwd)

    def _do(self, *words: str) -> str:
        return _call(self.folder, *words)


def _path(folder: Path) -> str:
    return os.pathsep.join([str(folder / "env" / "bin"), os.environ["PATH"]])


def _call(folder: Path, *words: str) -> str:
    """Runs ``lab``; what it says on stderr is the reason of a failure."""
    cmd = Command((str(SCRIPT), *words), {"LAB": str(folder), "PATH": _path(folder)})
    done = run(cmd, timeout_s=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _check(*words: str) -> None:
    done = run(Command((str(SCRIPT), "check", *words)), timeout_s=30)
    if done.returncode == 0:
        return
    if os.environ.get("HVDTRAIN_LAB") == "require":
        pytest.fail(done.stderr.strip(), pytrace=False)
    pytest.skip(done.stderr.strip())


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Four hosts and a head. The lab ends with this process, however that ends."""
    _check()
    given = os.environ.get("LAB")
    # Not pytest's own folder: sockets below it must have short paths.
    folder = Path(given or tempfile.mkdtemp(prefix="hvdtrain-lab-", dir="/tmp"))
    guard = spawn(Command((str(SCRIPT), "guard", str(os.getpid())), {"LAB": str(folder)}), is_piped=False)
    try:
        _call(folder, "down")
        _call(folder, "up")
        (folder / "env").unlink(missing_ok=True)
        (folder / "env").symlink_to(sys.prefix)
        yield Lab(folder)
    finally:
        namespaces = _namespaces(folder)
        _call(folder, "down")
        end_group(guard.pid)
        guard.wait()
        if not given:
            shutil.rmtree(folder)
        assert _left_by(folder, namespaces) == []


@pytest.fixture(scope="session")
def slurm(lab: Lab) -> Lab:
    """The same lab with Slurm on it."""
    _check("slurm")
    _call(lab.folder, "slurm")
    return lab


@pytest.fixture(scope="session")
def lab_script() -> Path:
    """The lab's command, for tests of the command itself."""
    return SCRIPT


def _namespaces(folder: Path) -> set[str]:
    """The pid namespaces of the lab's hosts."""
    inits = (path.read_text().split()[0] for path in folder.glob("host.*.pid"))
    return {space for pid in inits if (space := _link(Path("/proc", pid, "ns", "pid")))}


def _left_by(folder: Path, namespaces: set[str]) -> list[str]:
    """What a lab that is down has left on the machine: network cards, mounts, processes."""
    cards = [
        card.name for card in Path("/sys/class/net").iterdir() if card.name.startswith(("brlab", "labh"))
    ]
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line]
    processes = [
        f"{process.name} {(process / 'cmdline').read_text()}"
        for process in Path("/proc").glob("[0-9]*")
        if _link(process / "ns" / "pid") in namespaces
    ]
    return cards + mounts + processes


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""  # it ended meanwhile, or belongs to the kernel

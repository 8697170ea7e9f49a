"""Which hosts Horovod Elastic may use now; ``startup/discover.py`` starts it and tells its arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hvdtrain.errors import ExitCode, HvdtrainError, InputError, LaunchError
from hvdtrain.process import Command, run
from hvdtrain.topology.hostfile import read_hostfile

SCRIPT = str(Path(__file__).with_name("startup") / "discover.py")

_TIMEOUT_S = 20.0
# Node states (sinfo(1)) in which a node runs nothing; "*" after one means that it does not answer. A node
# that is drained goes on with the jobs that it has.
_GONE = ("down", "fail", "inval", "power", "reboot", "unk")


def discovery_argv(python: str, kind: str, *words: str) -> tuple[str, ...]:
    """The command that tells the hosts.

    Args:
        python: The interpreter.
        kind: ``list``, ``hostfile`` or ``slurm``.
        words: Its arguments.
    """
    return (python, "-I", "-S", SCRIPT, kind, *words)


def hosts_of_list(text: str) -> list[str]:
    """The hosts of a list of ours: they are what they are."""
    return text.split(",")


def hosts_of_file(path: str, most: str = "") -> list[str]:
    """The hosts that a hostfile names now; none while it is empty.

    Args:
        path: The hostfile.
        most: The slots to take of each host at most; empty for all.

    Raises:
        InputError: It cannot be read: it is being written, or wrong.
    """
    hosts = read_hostfile(Path(path)).hosts
    return [f"{host.name}:{min(host.slots, int(most)) if most else host.slots}" for host in hosts]


def hosts_of_slurm(text: str, ask: Callable[[Command], str] | None = None) -> list[str]:
    """Those hosts of a list of ours that Slurm does not call down; one that it does not know stays.

    Args:
        text: The hosts of the allocation with their slots.
        ask: Runs a command and returns what it prints.
    """
    listed = text.split(",")
    names = ",".join(entry.partition(":")[0] for entry in listed)
    told = (ask or _ask)(Command(("sinfo", "--noheader", "--Node", f"--nodes={names}", "--format=%N %T")))
    gone = {name for name, _, state in (line.partition(" ") for line in told.splitlines()) if _is_gone(state)}
    return [entry for entry in listed if entry.partition(":")[0] not in gone]


def _is_gone(state: str) -> bool:
    text = state.strip().lower()
    return text.endswith("*") or text.startswith(_GONE)


def _ask(cmd: Command) -> str:
    try:
        result = run(cmd, timeout_s=_TIMEOUT_S)
    except (OSError, TimeoutError) as error:
        raise LaunchError(f"{cmd.argv[0]}: {error}") from None
    if result.returncode:
        raise LaunchError(f"{cmd.argv[0]}: {result.stderr.strip() or result.returncode}")
    return result.stdout


_KINDS: dict[str, Callable[..., list[str]]] = {
    "list": hosts_of_list,
    "hostfile": hosts_of_file,
    "slurm": hosts_of_slurm,
}


def main(argv: Sequence[str]) -> int:
    """Prints the hosts; see ``startup/discover.py``."""
    try:
        if len(argv) < 2 or argv[0] not in _KINDS:
            raise InputError(f"{' '.join(argv)!r}", legal=", ".join(f"{kind} ..." for kind in _KINDS))
        hosts = _KINDS[argv[0]](*argv[1:])
    except HvdtrainError as error:
        sys.stderr.write(f"hvdtrain: error: {error}\n")
        return int(error.exit_code)
    sys.stdout.write("".join(f"{host}\n" for host in hosts))
    return int(ExitCode.DONE)

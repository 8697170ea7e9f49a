"""The only place that starts a process.

A launch, a submission or a build is planned as a ``Command``; ``--dry-run``
prints it and ``run``, ``stream`` or ``spawn`` start that same object. Argument
lists go to the kernel as they are: there is no shell in between.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

# A started process, for the signatures of those who must not import subprocess.
Process = subprocess.Popen[bytes]

_PR_SET_CHILD_SUBREAPER = 36
_DROP_S = 1.0  # what a killed command's output may take to end
_END_LIMIT_S = 2.0  # what killed descendants may take to end


@dataclass(frozen=True)
class Command:
    """An argument list and what it adds to the environment.

    Attributes:
        argv: The program and its arguments, as the kernel gets them.
        env: Variables set on top of the caller's environment.
        unset: Variables of the caller's environment that the program must not see.
        cwd: Working directory; None keeps the caller's.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    cwd: Path | None = None

    def display(self) -> str:
        """The command as one line that a person can paste into a shell."""
        words = [f"-u{name}" for name in self.unset]
        words += [f"{name}={value}" for name, value in sorted(self.env.items())]
        return shlex.join((["env", *words] if words else []) + list(self.argv))

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The whole environment that the program sees, given the caller's."""
        kept = {name: value for name, value in base.items() if name not in self.unset}
        return {**kept, **self.env}


@dataclass(frozen=True)
class Completed:
    """How a command ended. ``returncode`` is negative for a signal, as in subprocess."""

    returncode: int
    stdout: str
    stderr: str


def command(*argv: str | Path, env: Mapping[str, str] | None = None) -> Command:
    """Builds a Command from words, for callers that have them one by one."""
    return Command(tuple(str(word) for word in argv), env or {})


def run(
    cmd: Command,
    *,
    timeout_s: float | None = None,
    base_env: Mapping[str, str] | None = None,
    keeps_descriptors: bool = False,
) -> Completed:
    """Runs a command to its end and captures what it prints.

    Args:
        cmd: What to run.
        timeout_s: How long it may take; None sets no limit.
        base_env: The environment that ``cmd`` adds to; None takes this process's.
        keeps_descriptors: As for ``spawn``.

    Raises:
        FileNotFoundError: The program does not exist.
        TimeoutError: It ran longer than ``timeout_s``; it and its children were killed.
    """
    child = _start(cmd, base_env, subprocess.PIPE, subprocess.PIPE, None, keeps_descriptors)
    try:
        out, err = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        end_group(child.pid, grace_s=0.0)
        _drop_output(child)
        raise TimeoutError(f"{cmd.argv[0]} did not end within {timeout_s:g} s") from None
    except BaseException:
        end_group(child.pid)
        child.wait()
        raise
    return Completed(child.returncode, _text(out), _text(err))


def stream(
    cmd: Command,
    on_line: Callable[[str], None],
    *,
    base_env: Mapping[str, str] | None = None,
) -> int:
    """Runs a command, handing over each line of its joined output as it comes.

    If ``on_line`` raises, or the caller is interrupted, the command and its
    children are ended before the exception goes on.
    """
    child = _start(cmd, base_env, subprocess.PIPE, subprocess.STDOUT)
    assert child.stdout is not None
    try:
        for line in child.stdout:
            on_line(_text(line).rstrip("\n"))
        return child.wait()
    except BaseException:
        end_group(child.pid)
        child.wait()
        raise


def spawn(
    cmd: Command,
    *,
    base_env: Mapping[str, str] | None = None,
    is_piped: bool = True,
    death_signal: signal.Signals | None = None,
    keeps_descriptors: bool = False,
) -> Process:
    """Starts a command in a process group of its own.

    The caller owns the child: it reads both pipes and ends the group with ``end_group``.

    Args:
        cmd: What to start.
        base_env: The environment that ``cmd`` adds to; None takes this process's.
        is_piped: Whether stdout and stderr are pipes to read from, or this process's own.
        death_signal: What the child gets when the thread that called this ends, however it ends (Linux).
        keeps_descriptors: Whether the child inherits what this process inherited, such as the connection to
            MPICH's launcher that PMI_FD names.
    """
    output = subprocess.PIPE if is_piped else None
    return _start(cmd, base_env, output, output, death_signal, keeps_descriptors)


def end_group(pid: int, *, grace_s: float = 3.0) -> None:
    """Ends a process group that ``spawn`` started: SIGTERM, then SIGKILL for what is left.

    Waits until the leader ended, at most ``grace_s``; members that outlive it are killed at
    once. The caller still has to wait for the leader.
    """
    if grace_s > 0:
        _signal_group(pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and not _ended(pid):
            time.sleep(0.02)
    _signal_group(pid, signal.SIGKILL)


def adopt_orphans() -> None:
    """Makes this process the parent of each descendant whose own parent ends (prctl(2), Linux 3.4)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(keep_pid: int) -> None:
    """Takes leave of adopted children that ended; of ``keep_pid`` its owner does."""
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == keep_pid:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)


def end_descendants() -> None:
    """Kills all that this process started or adopted, in whatever session, and waits for its end.

    For a process that waits for no other child any more. What the kernel cannot end soon is left.
    """
    deadline = time.monotonic() + _END_LIMIT_S
    while (pids := _descendants("self")) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)


def replace_process(cmd: Command, base_env: Mapping[str, str]) -> NoReturn:
    """Replaces this process by the command."""
    os.execvpe(cmd.argv[0], list(cmd.argv), cmd.environment(base_env))


def _start(
    cmd: Command,
    base_env: Mapping[str, str] | None,
    stdout: int | None,
    stderr: int | None,
    death_signal: signal.Signals | None = None,
    keeps_descriptors: bool = False,
) -> Process:
    base = os.environ if base_env is None else base_env
    return subprocess.Popen(
        cmd.argv,
        env=cmd.environment(base),
        cwd=cmd.cwd,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        # Python's own descriptors are closed either way (PEP 446).
        close_fds=not keeps_descriptors,
        preexec_fn=None if death_signal is None else _tie_to_parent(death_signal),
    )


def _tie_to_parent(number: signal.Signals) -> Callable[[], None] | None:
    """What a new child calls to be signalled when its parent ends (prctl(2), PR_SET_PDEATHSIG)."""
    if sys.platform != "linux":
        return None
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def tie() -> None:
        prctl(1, int(number))
        if os.getppid() != parent:  # it ended before the call
            os.kill(os.getpid(), number)

    return tie


def _drop_output(child: Process) -> None:
    """Waits for a killed child, but not for others that hold its pipes: they may be beyond its group."""
    try:
        child.communicate(timeout=_DROP_S)
    except subprocess.TimeoutExpired:
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
        child.wait()


def _descendants(process: int | str) -> list[int]:
    """The processes below one, nearest first; those that end meanwhile may be missing."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{process}/task").glob("*/children"):
            children += map(int, path.read_text().split())
    return children + [pid for child in children for pid in _descendants(child)]


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def _ended(pid: int) -> bool:
    """Whether a child of ours ended; leaves it to be waited for by its owner."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True

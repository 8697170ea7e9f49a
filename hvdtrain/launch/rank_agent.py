"""Runs once per rank, around the program.

``python -m hvdtrain.launch.rank_agent [--log-dir DIR] -- PROGRAM [ARGUMENT ...]`` starts the program as
its child, sends each line that the child prints to the supervisor (see ``frames``) and to
``DIR/rank-N.log``, hands on signals, and says how the child ended. It ends with the child's exit code,
128+n for a signal n, 127 or 126 if the program cannot be started. Every rank pays for its start-up, so
it imports little.
"""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from hvdtrain.errors import ExitCode, HvdtrainError, InputError
from hvdtrain.launch.frames import EVENT_MARK, encode
from hvdtrain.launch.signals import ENDING, SOFT_END, signals_to
from hvdtrain.process import Command, Process, end_group, spawn
from hvdtrain.topology.environ import find_world

TAIL_LINES = 200
_TAIL_WIDTH = 2000
_MAX_LINE = 1 << 20  # a longer line is handed on in parts: memory stays bounded
_TERM_GRACE_S = 30.0  # Slurm's KillWait: time to write a checkpoint
_MPIRUN_GRACE_S = (
    0.15  # mpirun sends SIGKILL 0.25 s after SIGTERM; the child's own children must be gone by then
)
_ORPHAN_CHECK_S = 1.0  # how often to look whether the launcher still lives
_ORPHAN_GRACE_S = 2.0  # what the child gets to end when it does not
_LOST_GRACE_S = 5.0  # how long a program whose main thread died of an exception may stay silent
_DRAIN_S = 0.5  # for what the child's own children still print after its end
_STARTUP = str(Path(__file__).parent / "startup")


class Outlet:
    """Where a rank's lines go: frames to the supervisor, lines to the log, the last errors into memory.

    Attributes:
        tail: The last ``TAIL_LINES`` lines of stderr.
        uncaught_pid: The process that said it died of an uncaught exception; None while none did.
        uncaught_at: When it said so, seconds since 1970.
    """

    def __init__(self, rank: int, log: BinaryIO | None, fd: int = 2) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.uncaught_pid: int | None = None
        self.uncaught_at = 0.0
        self._rank, self._log, self._fd = rank, log, fd

    def send(self, content: dict[str, Any]) -> None:
        """Sends one message.

        Raises:
            BrokenPipeError: The supervisor is gone.
        """
        for block in encode(self._rank, content):
            _write(self._fd, block)

    def line(self, stream: str, raw: bytes) -> None:
        """Takes one line that the child printed on ``stdout`` or ``stderr``, without its newline."""
        text = raw.decode("utf-8", errors="replace").rstrip("\r")
        if text.startswith(EVENT_MARK) and self._event(text[len(EVENT_MARK) :]):
            return
        text = text[text.rfind("\r") + 1 :]  # of a progress bar, what a terminal would show
        if stream == "stderr":
            self.tail.append(text[:_TAIL_WIDTH])
        self.send({stream: text})
        if self._log is not None:
            try:
                self._log.write(text.encode("utf-8", errors="replace") + b"\n")
            except OSError as error:
                self._log = None
                self.send({"stderr": f"hvdtrain: the log of rank {self._rank} ends here: {error.strerror}"})

    def _event(self, text: str) -> bool:
        try:
            event = json.loads(text)
        except ValueError:
            return False
        if not isinstance(event, dict):
            return False
        if "uncaught" in event:
            self.uncaught_pid, self.uncaught_at = event.get("pid"), time.time()
        else:
            self.send({"event": event})
        return True


class Child:
    """The program while it runs: its pipes, its signals, its end.

    Attributes:
        was_asked: Whether a signal asked it to end.
    """

    def __init__(self, process: Process, outlet: Outlet, term_grace_s: float) -> None:
        self.was_asked = False
        self._process, self._outlet, self._term_grace_s = process, outlet, term_grace_s
        self._parent = os.getppid()
        self._selector = selectors.PollSelector()
        self._rests: dict[str, bytes] = {}
        self._kill_at = float("inf")
        self._last_output = time.monotonic()
        self._is_lost = False

    def watch(self) -> int:
        """Hands on output and signals until child and pipes ended; returns the code as Popen does.

        A child whose main thread died of an exception and that does not end is ended, with code 1.
        """
        with signals_to(self._signal) as wake:
            return self._watch(wake)

    def _watch(self, wake: int) -> int:
        self._selector.register(wake, selectors.EVENT_READ, "")
        for stream, pipe in (("stdout", self._process.stdout), ("stderr", self._process.stderr)):
            assert pipe is not None
            self._rests[stream] = b""
            self._selector.register(pipe.fileno(), selectors.EVENT_READ, stream)
        drain_until = float("inf")
        while len(self._selector.get_map()) > 1 and time.monotonic() < drain_until:
            self._read(self._patience_s(drain_until))
            if self._process.poll() is None:
                self._end_if_due()
                continue
            drain_until = min(drain_until, time.monotonic() + _DRAIN_S)
            if self.was_asked:  # there may be no time to wait for what the child started
                end_group(self._process.pid, grace_s=0.0)
        while self._process.poll() is None:  # it closed its pipes and goes on
            self._read(self._patience_s(drain_until))
            self._end_if_due()
        for stream, rest in self._rests.items():
            if rest:
                self._outlet.line(stream, rest)
        end_group(self._process.pid, grace_s=0.0)
        return 1 if self._is_lost else self._process.returncode

    def _patience_s(self, drain_until: float) -> float:
        """How long to sleep: a moment while a deadline runs, or else until the next look at the launcher."""
        is_timed = (
            drain_until < float("inf")
            or self._kill_at < float("inf")
            or self._outlet.uncaught_pid == self._process.pid
        )
        return 0.05 if is_timed else _ORPHAN_CHECK_S

    def _read(self, timeout_s: float | None) -> None:
        for key, _ in self._selector.select(timeout_s):
            data = os.read(key.fd, 1 << 16)
            if not key.data:
                continue  # only woken up
            if not data:
                self._selector.unregister(key.fileobj)
                continue
            self._last_output = time.monotonic()
            *lines, rest = (self._rests[key.data] + data).split(b"\n")
            if len(rest) > _MAX_LINE:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._outlet.line(key.data, line)
            self._rests[key.data] = rest

    def _signal(self, number: int) -> None:
        """Hands a signal on to the child; a second request to end kills it."""
        if number == SOFT_END:
            number, grace_s = signal.SIGTERM, _TERM_GRACE_S
        else:
            grace_s = self._term_grace_s
        if number in ENDING:
            self._kill_at = 0.0 if self.was_asked else time.monotonic() + grace_s
            self.was_asked = True
        if self._process.poll() is None:
            os.kill(self._process.pid, number)

    def _end_if_due(self) -> None:
        now = time.monotonic()
        if os.getppid() != self._parent and self._kill_at == float("inf"):
            self._signal(SOFT_END)
            self._kill_at = now + _ORPHAN_GRACE_S
        if now >= self._kill_at:
            end_group(self._process.pid, grace_s=0.0)
        elif self._outlet.uncaught_pid == self._process.pid and now - self._last_output > _LOST_GRACE_S:
            self._is_lost = True
            end_group(self._process.pid, grace_s=1.0)


def run_rank(program: Sequence[str], log_dir: str | None) -> int:
    """Runs the program as the rank that the environment names; returns the exit code."""
    world = find_world(os.environ)
    outlet = Outlet(world.rank, _open_log(log_dir, world.rank))
    paths = [_STARTUP, *filter(None, [os.environ.get("PYTHONPATH")])]
    cmd = Command(tuple(program), {"PYTHONPATH": os.pathsep.join(paths)})
    pid, was_asked = None, False
    try:
        process = spawn(cmd, death_signal=signal.SIGKILL)
    except OSError as error:
        outlet.line("stderr", f"hvdtrain: cannot start {program[0]!r}: {error.strerror}".encode())
        code = 127 if isinstance(error, FileNotFoundError) else 126
    else:
        pid = process.pid
        child = Child(process, outlet, _MPIRUN_GRACE_S if world.launcher == "openmpi" else _TERM_GRACE_S)
        try:
            code = child.watch()
            was_asked = child.was_asked
        except BaseException:
            end_group(pid, grace_s=0.0)
            raise
    failed_at = outlet.uncaught_at if outlet.uncaught_pid == pid is not None else time.time()
    end = {"code": code, "pid": pid, "host": os.uname().nodename, "time": failed_at, "asked": was_asked}
    outlet.send({"end": end if code == 0 else {**end, "tail": list(outlet.tail)}})
    return 128 - code if code < 0 else code


def main(argv: Sequence[str]) -> int:
    """The agent's command line."""
    words, log_dir = list(argv), None
    if words[:1] == ["--log-dir"] and len(words) > 1:
        log_dir, words = words[1], words[2:]
    try:
        if words[:1] != ["--"] or len(words) < 2:
            raise InputError(f"bad arguments {list(argv)}", legal="[--log-dir DIR] -- PROGRAM [ARGUMENT ...]")
        return run_rank(words[1:], log_dir)
    except HvdtrainError as error:
        os.write(2, f"hvdtrain: error: {error}\n".encode())
        return int(error.exit_code)
    except BrokenPipeError:
        return int(ExitCode.FAILED)  # nobody is left to tell


def _open_log(log_dir: str | None, rank: int) -> BinaryIO | None:
    if log_dir is None:
        return None
    path = Path(log_dir) / f"rank-{rank}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "ab", buffering=0)  # open until the process ends
    except OSError as error:
        raise InputError(f"the log {path} cannot be written: {error.strerror}") from None


def _write(fd: int, data: bytes) -> None:
    """Writes all of it, also where the launcher made the pipe non-blocking."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            select.select([], [fd], [])


if __name__ == "__main__":
    # Nothing is buffered or shared with threads: the interpreter's own clean-up would only cost time.
    os._exit(main(sys.argv[1:]))

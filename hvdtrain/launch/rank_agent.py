"""Runs once per rank, around the program.

``python -m hvdtrain.launch.rank_agent [OPTION VALUE ...] -- PROGRAM [ARGUMENT ...]`` tells the supervisor
where it runs, starts the program as its child, sends each line that the child prints to the supervisor (see
``frames``) and to the rank's log, hands on signals, and says how the child ended. It ends with the child's
exit code, 128+n for a signal n, 127 or 126 if the program cannot be started. Every rank pays for its
start-up, so it imports little.

Options: ``--log-dir DIR``; ``--gpus`` and ``--bind`` as ``seat`` has them; ``--beat 1`` to let the supervisor
hear from this host all the time; ``--program JSON`` in place of what follows ``--``.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtrain.errors import ExitCode, HvdtrainError, InputError
from hvdtrain.launch.outlet import LineBuffer, Outlet, open_log
from hvdtrain.launch.signals import ENDING, SOFT_END, signals_to
from hvdtrain.process import (
    Command,
    Process,
    adopt_orphans,
    end_descendants,
    end_group,
    reap_orphans,
    spawn,
)
from hvdtrain.topology.environ import World, find_world

_TERM_GRACE_S = 30.0  # Slurm's KillWait: time to write a checkpoint
_MPIRUN_GRACE_S = (
    0.15  # mpirun sends SIGKILL 0.25 s after SIGTERM; the child's own children must be gone by then
)
_ORPHAN_CHECK_S = 1.0  # how often to look whether the launcher still lives
_ORPHAN_GRACE_S = 2.0  # what the child gets to end when it does not
_BEAT_S = 3.0  # how often the supervisor hears from a rank that has nothing to say
_LOST_GRACE_S = 5.0  # how long a program whose main thread died of an exception may stay silent
_DRAIN_S = 0.5  # for what the child's own children still print after its end
_STEPS = frozenset({"slurm", "pmix", "pmi"})  # how ranks call themselves that srun started
_STARTUP = str(Path(__file__).parent / "startup")
_LEGAL = "[--log-dir DIR] [--gpus GPUS] [--bind MODE] [--beat 1] -- PROGRAM [ARGUMENT ...]"


@dataclass(frozen=True)
class Options:
    """The agent's command line."""

    program: tuple[str, ...]
    log_dir: str | None = None
    gpus: str = ""
    bind: str = "none"
    has_beat: bool = False


class Child:
    """The program while it runs: its pipes, its signals, its end.

    Attributes:
        was_asked: Whether a signal asked it to end.
        is_excused: Whether that came before it failed on its own, as far as it told.
        died_at: When its end was noticed, seconds since 1970; None before.
    """

    def __init__(self, process: Process, outlet: Outlet, world: World, has_beat: bool) -> None:
        self.was_asked = self.is_excused = False
        self.died_at: float | None = None
        self._process, self._outlet = process, outlet
        self._term_grace_s = _MPIRUN_GRACE_S if world.launcher == "openmpi" else _TERM_GRACE_S
        self._next_beat = time.monotonic() + _BEAT_S if has_beat else float("inf")
        self._parent = os.getppid()
        self._selector = selectors.PollSelector()
        self._buffers = {"stdout": LineBuffer(), "stderr": LineBuffer()}
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
            self._selector.register(pipe.fileno(), selectors.EVENT_READ, stream)
        drain_until = float("inf")
        while len(self._selector.get_map()) > 1 and time.monotonic() < drain_until:
            self._read(self._patience_s(drain_until))
            if self._process.poll() is None:
                self._end_if_due()
                continue
            self._notice_death()
            drain_until = min(drain_until, time.monotonic() + _DRAIN_S)
            if self.was_asked:  # there may be no time to wait for what the child started
                end_descendants()
        while self._process.poll() is None:  # it closed its pipes and goes on
            self._read(self._patience_s(drain_until))
            self._end_if_due()
        self._notice_death()
        for stream, buffer in self._buffers.items():
            for line in buffer.close():
                self._outlet.line(stream, line)
        return 1 if self._is_lost else self._process.returncode

    def _patience_s(self, drain_until: float) -> float:
        """How long to sleep: a moment while a deadline runs, or else until the next look at the launcher."""
        is_timed = (
            drain_until < float("inf")
            or self._kill_at < float("inf")
            or self._outlet.uncaught_at is not None
            or self._outlet.last_words.is_waiting
        )
        return 0.05 if is_timed else _ORPHAN_CHECK_S

    def _read(self, timeout_s: float | None) -> None:
        for key, _ in self._selector.select(timeout_s):
            data = os.read(key.fd, 1 << 16)
            if not key.data:
                reap_orphans(self._process.pid)
                continue  # only woken up
            if not data:
                self._selector.unregister(key.fileobj)
                continue
            self._last_output = time.monotonic()
            for line in self._buffers[key.data].feed(data, self._last_output):
                self._outlet.line(key.data, line)

    def _notice_death(self) -> None:
        """Tells of a failure at once: the launcher may end this agent before it has told the rest."""
        if self.died_at is not None:
            return
        self.died_at = time.time()
        if self._process.returncode and not self.was_asked:
            told = {"code": self._process.returncode, "host": os.uname().nodename, "time_s": self.died_at}
            self._outlet.send({"died": told})

    def _signal(self, number: int) -> None:
        """Hands a signal on to the child; a second request to end kills it."""
        if number == SOFT_END:
            number, grace_s = signal.SIGTERM, _TERM_GRACE_S
        else:
            grace_s = self._term_grace_s
        if number in ENDING:
            self._kill_at = 0.0 if self.was_asked else time.monotonic() + grace_s
            self.is_excused = self.is_excused or self._outlet.uncaught_at is None
            self.was_asked = True
        if self._process.poll() is None:
            os.kill(self._process.pid, number)

    def _end_if_due(self) -> None:
        """Shows progress, says that the rank lives, and ends it when its time is over."""
        now = time.monotonic()
        for stream, buffer in self._buffers.items():
            for line in buffer.progress(now):
                self._outlet.line(stream, line)
        self._outlet.last_words.release_if_old(now)
        if now >= self._next_beat:
            self._outlet.send({"beat": 1})
            self._next_beat = now + _BEAT_S
        if os.getppid() != self._parent and self._kill_at == float("inf"):
            self._signal(SOFT_END)
            self._kill_at = now + _ORPHAN_GRACE_S
        if now >= self._kill_at:
            end_group(self._process.pid, grace_s=0.0)
        elif self._outlet.uncaught_at is not None and now - self._last_output > _LOST_GRACE_S:
            self._is_lost = True
            end_group(self._process.pid, grace_s=1.0)


def run_rank(options: Options) -> int:
    """Runs the program as the rank that the environment names; returns the exit code."""
    world = find_world(os.environ)
    outlet = Outlet(world.rank)
    try:
        outlet.log = open_log(options.log_dir, world.rank)
        cmd = Command(options.program, _prepare(world, options, outlet))
    except InputError as error:
        outlet.send({"refusal": str(error)})
        return int(error.exit_code)
    pid, was_asked, died_at = None, False, None
    adopt_orphans()  # those of the program's processes that leave its session are to end with it
    try:
        process = spawn(cmd, death_signal=signal.SIGKILL, keeps_descriptors=True)
    except OSError as error:
        outlet.keep(f"hvdtrain: cannot start {cmd.argv[0]!r}: {error.strerror}")
        code = 127 if isinstance(error, FileNotFoundError) else 126
    else:
        pid = outlet.program_pid = process.pid
        child = Child(process, outlet, world, options.has_beat)
        try:
            code = child.watch()
            was_asked, died_at = child.is_excused, child.died_at
        finally:
            end_descendants()
    failed_at = outlet.uncaught_at or died_at or time.time()
    host = os.uname().nodename
    end: dict[str, Any] = {"code": code, "pid": pid, "host": host, "time": failed_at, "asked": was_asked}
    if code == 0 or was_asked:
        outlet.last_words.release()
    if code:
        end |= {"tail": list(outlet.tail), "last_words": outlet.last_words.close()}
    outlet.send({"end": end})
    return 128 - code if code < 0 else code


def _prepare(world: World, options: Options, outlet: Outlet) -> dict[str, str]:
    """Takes the rank's seat and tells the supervisor of it; returns variables for the program."""
    env: dict[str, str] = {}
    device = ""
    if options.gpus or options.bind != "none":
        from hvdtrain.launch.seat import take_seat

        seat = take_seat(world, options.gpus, options.bind, os.environ)
        env.update(seat.env)
        device = seat.gpu.key if seat.gpu else ""
    start = {"host": os.uname().nodename, "size": world.size, "device": device}
    if world.launcher in _STEPS and "SLURM_STEP_ID" in os.environ:
        start["step"] = f"{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}"
    outlet.send({"start": start})
    paths = [_STARTUP, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**env, "PYTHONPATH": os.pathsep.join(paths)}


def parse_options(argv: Sequence[str]) -> Options:
    """Reads the agent's command line.

    Raises:
        InputError: It is none.
    """
    values: dict[str, str] = {}
    words = list(argv)
    while len(words) > 1 and words[0] in ("--log-dir", "--gpus", "--bind", "--beat", "--program"):
        values[words[0]] = words[1]
        del words[:2]
    program = json.loads(values["--program"]) if "--program" in values else words[1:]
    if not program or ("--program" not in values and words[0] != "--"):
        raise InputError(f"bad arguments {list(argv)}", legal=_LEGAL)
    return Options(
        program=tuple(program),
        log_dir=values.get("--log-dir"),
        gpus=values.get("--gpus", ""),
        bind=values.get("--bind", "none"),
        has_beat="--beat" in values,
    )


def main(argv: Sequence[str]) -> int:
    """The agent's command line."""
    try:
        return run_rank(parse_options(argv))
    except HvdtrainError as error:
        os.write(2, f"hvdtrain: error: {error}\n".encode())
        return int(error.exit_code)
    except BrokenPipeError:
        return int(ExitCode.FAILED)  # nobody is left to tell


if __name__ == "__main__":
    # Nothing is buffered or shared with threads: the interpreter's own clean-up would only cost time.
    os._exit(main(sys.argv[1:]))

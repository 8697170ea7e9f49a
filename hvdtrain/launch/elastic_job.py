"""The life of a job whose ranks come and go: it ends when horovodrun does, not with its first failure."""

from __future__ import annotations

import os
import re
import selectors
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hvdtrain.errors import ExitCode
from hvdtrain.launch.frames import FrameReader, Message
from hvdtrain.launch.outcome import SIGNALLED, JobOutcome, Line, RankEnd, how_it_ended, job_code
from hvdtrain.launch.paragraphs import worth_telling
from hvdtrain.launch.plan import AGENT
from hvdtrain.launch.signals import ENDING, signals_to
from hvdtrain.process import Command, Process, end_group, spawn

_SAVE_GRACE_S = 30.0  # what the ranks get to write a checkpoint
_END_GRACE_S = 15.0  # what horovodrun gets to kill them: it waits 5 s for them and then 5 s for their agents
_KILL_GRACE_S = 2.0
_LOOK_EVERY_S = 0.5
# What horovodrun writes before each line of a rank: here before each frame.
_PREFIX = re.compile(r"\[\d+\]<std(out|err)>:")
_MAX_LINES = 200
# What Horovod calls a rank whose host it was told to give up; the rank aborts.
_TAKEN_OUT = "has been removed from elastic job"
_TOO_FEW = "failed to activate new hosts"
_SOON = frozenset({signal.SIGUSR1, signal.SIGUSR2})  # a scheduler's; horovodrun would die of them


@dataclass(frozen=True)
class Listeners:
    """Who hears of an elastic job.

    Attributes:
        line: Gets each line that a rank prints; ranks go by the number that they started with.
        event: Gets (rank, event) for each event line of a rank.
        note: Gets a sentence about a rank that is gone.
    """

    line: Callable[[Line], None]
    event: Callable[[int, dict[str, Any]], None]
    note: Callable[[str], None]


def supervise_elastic(
    cmd: Command,
    listeners: Listeners,
    *,
    base_env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> JobOutcome:
    """Starts horovodrun and stays until the job and all its processes on this host ended.

    SIGTERM and Ctrl-C are handed on once, the second one kills; SIGUSR1 and SIGUSR2 never do. Must run in the
    main thread.

    Args:
        cmd: An elastic horovodrun around rank agents.
        listeners: Who hears of it.
        base_env: The environment that ``cmd`` adds to; None takes this process's.
        timeout_s: After it the job is asked to end; None sets no limit.
    """
    process = spawn(cmd, base_env=base_env, death_signal=signal.SIGTERM)
    end_at = time.monotonic() + (float("inf") if timeout_s is None else timeout_s)
    job = _ElasticJob(process, listeners, end_at, timeout_s)
    try:
        with signals_to(job.interrupt) as wake:
            job.read(wake)
    finally:
        end_group(process.pid, grace_s=_KILL_GRACE_S)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
    return job.outcome()


@dataclass
class _ElasticJob:
    """What is known of a running job."""

    process: Process
    listeners: Listeners
    end_at: float
    timeout_s: float | None
    started: int = 0
    done: set[int] = field(default_factory=set)
    is_preempted: bool = False
    failures: list[RankEnd] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    interrupted: int = 0
    is_told: bool = False  # by a signal that asks to end, not only by one that announces it
    is_late: bool = False
    hurry_at: float = float("inf")
    kill_at: float = float("inf")

    def read(self, wake: int) -> None:
        """Reads both pipes until horovodrun closed them or its time is over."""
        readers = {}
        selector = selectors.PollSelector()
        selector.register(wake, selectors.EVENT_READ)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            selector.register(pipe.fileno(), selectors.EVENT_READ)
            readers[pipe.fileno()] = FrameReader()
        while readers:
            for key, _ in selector.select(_LOOK_EVERY_S):
                data = os.read(key.fd, 1 << 16)
                if key.fd == wake:
                    continue
                for item in readers[key.fd].feed(data) if data else readers[key.fd].close():
                    self.take(item)
                if not data:
                    selector.unregister(key.fd)
                    del readers[key.fd]
            self._watch(time.monotonic())
            if time.monotonic() > self.kill_at:
                end_group(self.process.pid, grace_s=_KILL_GRACE_S)
                if self.process.poll() is not None:
                    return

    def _watch(self, now: float) -> None:
        if now > self.end_at:
            self.end_at, self.is_late = float("inf"), True
            self._ask_to_end()
        if self.process.poll() is not None:
            self.kill_at = min(self.kill_at, now + _KILL_GRACE_S)
        elif now > self.hurry_at:
            self.hurry_at = float("inf")
            os.kill(self.process.pid, signal.SIGTERM)

    def take(self, item: Message | str) -> None:
        """Takes one message of an agent, or one line of anybody else."""
        if isinstance(item, str):
            text = _PREFIX.sub("", item, count=1)
            self.lines = [*self.lines, text][-_MAX_LINES:] if text.strip() else self.lines
            if _TOO_FEW in text:
                self.listeners.note(
                    "fewer ranks are left than --min-ranks asks for, and no host came in time"
                )
            return
        rank, content = item
        if "event" in content:
            self.listeners.event(rank, content["event"])
        elif "end" in content:
            self._end(rank, content["end"])
        elif "start" in content:
            self.started += 1
        elif "refusal" in content:
            self.lines.append(content["refusal"])
        elif not content.keys() & {"beat", "died"}:
            for stream, text in content.items():
                self.listeners.line(Line(rank, stream, text))

    def _end(self, rank: int, end: Mapping[str, Any]) -> None:
        words = {name: tuple(end.get(name, ())) for name in ("tail", "last_words")}
        told = RankEnd(rank, end["host"], end["code"], end["time"], end["asked"], **words)
        if not told.code:
            self.done.add(rank)
            return
        if any(_TAKEN_OUT in line for line in told.tail):
            self.listeners.note(f"rank {rank} on host {told.host} was taken out of the job")
            return
        self.is_preempted = self.is_preempted or told.code == ExitCode.PREEMPTED
        if told.was_asked:
            return
        self.failures.append(told)
        if not self.interrupted and told.code not in (ExitCode.PREEMPTED, ExitCode.USAGE):
            error = f": {told.error}" if told.error else ""
            self.listeners.note(f"rank {rank} on host {told.host} failed: {how_it_ended(told.code)}{error}")

    def interrupt(self, number: int) -> None:
        """Has the ranks end on a signal that this process got; the second one that asks to end kills."""
        if number in ENDING and self.is_told:
            self.kill_at = 0.0
            return
        self.is_told = self.is_told or number in ENDING
        if not self.interrupted:
            self.interrupted = signal.SIGTERM if number in _SOON else number
            self._ask_to_end()
        elif number not in ENDING:
            return  # schedulers announce one end by several signals
        again = b"SIGTERM twice kills" if number in _SOON else b"the same signal again kills"
        with suppress(OSError):  # the terminal may be what is lost
            os.write(2, b"hvdtrain: asking the ranks to end; " + again + b" them\n")

    def _ask_to_end(self) -> None:
        """Asks the ranks of this host: one is enough for a training, and horovodrun would stop the agents."""
        agents = agents_below(self.process.pid)
        for pid in agents:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        self.hurry_at = time.monotonic() + (_SAVE_GRACE_S if agents else 0.0)
        self.kill_at = min(self.kill_at, self.hurry_at + _END_GRACE_S)

    def outcome(self) -> JobOutcome:
        """Puts together what became of the job; every process of it has ended."""
        code = self._exit_code()
        late = f"the job did not end within its time limit of {self.timeout_s:g} s" if self.is_late else ""
        return JobOutcome(
            code,
            self.started,
            self.failures[-1] if self.failures and code else None,
            frozenset(self.done),
            self.process.returncode,
            worth_telling(self.lines),
            self.interrupted,
            late,
        )

    def _exit_code(self) -> int:
        """The last failure is the one that the job did not survive."""
        if self.process.returncode == 0:
            return ExitCode.DONE
        if self.is_preempted:
            return ExitCode.PREEMPTED
        if self.is_late:
            return ExitCode.STALLED
        if self.interrupted:
            return SIGNALLED + self.interrupted
        if self.failures:
            return job_code(self.failures[-1].code)
        return job_code(min(self.process.returncode, 0)) or ExitCode.FAILED


def agents_below(pid: int) -> list[int]:
    """The rank agents among the descendants of a process."""
    import psutil

    found = []
    with suppress(psutil.Error):
        for one in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                if AGENT in one.cmdline():
                    found.append(int(one.pid))
    return found

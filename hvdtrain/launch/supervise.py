"""The life of a started job: what its ranks print, who failed first, how it ends.

The supervisor reads the launcher's output, in which the rank agents' messages travel (``frames``). It
knows of each rank how it ended, and so needs not guess from the launcher's exit code.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hvdtrain.errors import ExitCode, InputError
from hvdtrain.launch.failures import Failures
from hvdtrain.launch.frames import FrameReader, Message
from hvdtrain.launch.outcome import SIGNALLED, job_code
from hvdtrain.launch.outcome import JobOutcome as JobOutcome
from hvdtrain.launch.outcome import Line as Line
from hvdtrain.launch.outcome import RankEnd as RankEnd
from hvdtrain.launch.outcome import failure_text as failure_text
from hvdtrain.launch.outcome import tagged as tagged
from hvdtrain.launch.paragraphs import Talk, worth_telling
from hvdtrain.launch.roster import SILENCE_S, Roster, planned_layout
from hvdtrain.launch.signals import ENDING, SOFT_END, mpirun_below, signals_to
from hvdtrain.launch.terms import Terms as Terms
from hvdtrain.process import Command, Process, end_group, run, spawn

_FAIL_GRACE_S = 4.0  # what the launcher gets to end the other ranks after one failed
_KILL_GRACE_S = 2.0  # what it gets to clean up when its time is over
_DONE_GRACE_S = 30.0  # what the launcher gets to end after every rank said it was done
_TERM_GRACE_S = 30.0  # what a job gets to write a checkpoint after SIGTERM or Ctrl-C
_ORPHAN_GRACE_S = 5.0  # what the ranks get to end after the launcher did
_REFUSAL_GRACE_S = 0.5  # for the same refusal from other ranks
_SCANCEL_TIMEOUT_S = 10.0


def supervise(
    cmd: Command,
    *,
    size: int,
    on_line: Callable[[Line], None],
    on_event: Callable[[int, dict[str, Any]], None],
    base_env: Mapping[str, str] | None = None,
    terms: Terms | None = None,
) -> JobOutcome:
    """Starts a launcher's command and stays until the job and all its processes on this host ended.

    After the first failure the job is ended within 10 s, and so it is when a host falls silent. SIGTERM and
    Ctrl-C are handed on once and give the ranks time to end; the second one kills. Must run in the main
    thread.

    Args:
        cmd: A launcher's command around rank agents.
        size: Number of ranks that it starts.
        on_line: Gets each line of a rank.
        on_event: Gets (rank, event) for each event line of a rank.
        base_env: The environment that ``cmd`` adds to; None takes this process's.
        terms: How to ask for an end, and when to do so.

    Raises:
        FileNotFoundError: The launcher does not exist.
    """
    terms = terms or Terms()
    roster = Roster(size, terms.hears_beats, planned_layout(cmd.env))
    process = spawn(cmd, base_env=base_env, death_signal=signal.SIGTERM)
    job = _Job(process, roster, on_line, on_event, terms)
    job.end_at = time.monotonic() + (float("inf") if terms.timeout_s is None else terms.timeout_s)
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
class _Job:
    """What is known of a running job."""

    process: Process
    roster: Roster
    on_line: Callable[[Line], None]
    on_event: Callable[[int, dict[str, Any]], None]
    terms: Terms
    ends: dict[int, RankEnd] = field(default_factory=dict)
    failures: Failures = field(default_factory=Failures)
    foreign: Talk = field(default_factory=Talk)
    interrupted: int = 0
    reason: str = ""  # why the supervisor itself ended the job, and the job's exit code then
    reason_code: int = 0
    end_at: float = float("inf")
    must_ask: bool = False  # set by signals; the request itself is the loop's work
    kill_at: float = float("inf")

    def read(self, wake: int) -> None:
        """Reads both pipes until the launcher closed them or its time is over."""
        readers = {}
        selector = selectors.PollSelector()  # holds no descriptor of its own
        selector.register(wake, selectors.EVENT_READ)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            selector.register(pipe.fileno(), selectors.EVENT_READ)
            readers[pipe.fileno()] = FrameReader()
        while readers:
            for key, _ in selector.select(self._patience_s()):
                data = os.read(key.fd, 1 << 16)
                if key.fd == wake:
                    continue
                for item in readers[key.fd].feed(data) if data else readers[key.fd].close():
                    self.take(item)
                if not data:
                    selector.unregister(key.fd)
                    del readers[key.fd]
            self._watch(time.monotonic())
            if self.process.poll() is not None:
                # Agents that lost their launcher hold the pipes: they notice, and end their programs.
                self.kill_at = min(self.kill_at, time.monotonic() + _ORPHAN_GRACE_S)
            if time.monotonic() > self.kill_at:
                end_group(self.process.pid, grace_s=_KILL_GRACE_S)
                if self.process.poll() is not None:
                    return

    def _patience_s(self) -> float | None:
        """How long to wait for output: a moment while the job is to end, or until the next look around."""
        if self.kill_at < float("inf"):
            return 0.05
        is_watched = self.roster.hears_beats or self.end_at < float("inf") or not self._all_started
        return 1.0 if is_watched else None

    @property
    def _all_started(self) -> bool:
        return len(self.roster.hosts) == self.roster.size

    def _watch(self, now: float) -> None:
        """Ends a job whose time is over, or of which one host fell silent; tells why it does not start."""
        if not self._all_started:
            self.foreign.tell_if_old(now)
        if now > self.end_at:
            self.end_at = float("inf")
            text = f"the job did not end within its time limit of {self.terms.timeout_s:g} s"
            self._stop(text, ExitCode.STALLED, _TERM_GRACE_S)
            self.must_ask = True
        if self.must_ask:
            self.must_ask = False
            self._ask_to_end()
        if not self.reason and (host := self.roster.silent_host(now)):
            text = f"host {host} has not been heard of for {SILENCE_S:g} s: it, or the network to it, is gone"
            self._stop(text, ExitCode.FAILED, 0.0)

    def _stop(self, reason: str, code: int, grace_s: float) -> None:
        """Has the job end; the first reason is the one that is told."""
        if not self.reason:
            self.reason, self.reason_code = reason, code
        self.kill_at = min(self.kill_at, time.monotonic() + grace_s)

    def take(self, item: Message | str) -> None:
        """Takes one message of an agent, or one line of anybody else."""
        if isinstance(item, str):
            self.foreign.hear(item, time.monotonic())
            return
        rank, content = item
        self.roster.hear(rank, time.monotonic())
        if "event" in content:
            self.on_event(rank, content["event"])
        elif "end" in content:
            self._end(rank, content["end"])
        elif "died" in content:
            if not (self.interrupted or self.reason):
                self.failures.died(RankEnd(rank, **content["died"]))
        elif "start" in content:
            self._start(rank, content["start"])
        elif "refusal" in content:
            self._stop(content["refusal"], ExitCode.USAGE, _REFUSAL_GRACE_S)
        elif "beat" not in content:
            for stream, text in content.items():
                self.on_line(Line(rank, stream, text))

    def _start(self, rank: int, told: Mapping[str, Any]) -> None:
        try:
            self.roster.start(rank, told)
        except InputError as error:
            self._stop(str(error), ExitCode.USAGE, 0.0)

    def _end(self, rank: int, end: Mapping[str, Any]) -> None:
        words = {name: tuple(end.get(name, ())) for name in ("tail", "last_words")}
        told = RankEnd(rank, end["host"], end["code"], end["time"], end["asked"], **words)
        self.ends[rank] = told
        self.roster.forget(rank)
        if told.code and not told.was_asked:
            if not (self.interrupted or self.reason):
                self.failures.add(told)
            else:  # it may fail because other ranks were ended, so no verdict tells its last words
                self._show(told)
            self.kill_at = min(self.kill_at, time.monotonic() + _FAIL_GRACE_S)
        elif len(self.ends) == self.roster.size:
            self.end_at = float("inf")  # the time that the launcher takes is not the job's
            self.kill_at = min(self.kill_at, time.monotonic() + _DONE_GRACE_S)

    def _show(self, end: RankEnd) -> None:
        for text in end.last_words:
            self.on_line(Line(end.rank, "stderr", text))

    def interrupt(self, number: int) -> None:
        """Hands on a signal that this process got; the second one that asks to end kills."""
        if number in ENDING:
            if self.interrupted:
                self.kill_at = 0.0
                return
            self.interrupted = number
            self.kill_at = min(self.kill_at, time.monotonic() + _TERM_GRACE_S)
            self.must_ask = True
            # Not print: a signal may come while this very buffer is written.
            with suppress(OSError):  # the terminal may be what is lost
                os.write(2, b"hvdtrain: asking the ranks to end; the same signal again kills them\n")
        elif number in self.terms.deaf_to:
            name = signal.Signals(number).name
            os.write(2, f"hvdtrain: this launcher hands {name} on to nobody; send SIGUSR1\n".encode())
        else:
            self._send(number)

    def _ask_to_end(self) -> None:
        """Asks the ranks to end softly, in the launcher's words."""
        if not self.roster.step:
            self._send(self.terms.end_signal)
            return
        # srun answers every request with SIGKILL, and hands on no signal that programs do not use themselves.
        words = ("scancel", f"--signal={int(SOFT_END)}", self.roster.step)
        try:
            result = run(Command(words), timeout_s=_SCANCEL_TIMEOUT_S)
            trouble = result.stderr.strip() or f"exit code {result.returncode}" if result.returncode else ""
        except (OSError, TimeoutError) as error:
            trouble = str(error)
        if trouble:
            sys.stderr.write(f"hvdtrain: {words[0]}: {trouble}; srun is asked, which kills the ranks\n")
            self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        if self.process.poll() is None:
            pid = self.process.pid
            os.kill(mpirun_below(pid) if self.terms.is_wrapper else pid, number)

    def outcome(self) -> JobOutcome:
        """Puts together what became of the job; every process of it has ended."""
        done = frozenset(rank for rank, end in self.ends.items() if end.code == 0)
        failures = self.failures.in_order(self.ends)
        first = failures[0] if failures else None
        exit_code = self._exit_code(first, len(done) == self.roster.size)
        if exit_code == ExitCode.DONE:
            self.foreign.tell()  # warnings; of a failure they are part of what is told
        outcome = JobOutcome(
            exit_code,
            self.roster.size,
            first,
            done,
            self.process.returncode,
            worth_telling(self.foreign.lines),
            self.interrupted,
            self.reason,
            failures[1:],
            self._left(first) if exit_code else (),
        )
        if outcome.is_ended_by_reason:
            for end in failures:
                self._show(end)
        return outcome

    def _left(self, first: RankEnd | None) -> tuple[int, ...]:
        """Ranks that ended well before the first failure; before the launcher's, all that did."""
        by = first.time_s if first else float("inf")
        return tuple(sorted(rank for rank, end in self.ends.items() if end.code == 0 and end.time_s < by))

    def _exit_code(self, first: RankEnd | None, all_done: bool) -> int:
        ends = self.ends.values()
        if all_done and not any(end.was_asked for end in ends):
            return ExitCode.DONE
        if self.reason and self.reason_code != ExitCode.STALLED:
            return self.reason_code
        if first is not None:
            return job_code(first.code)
        if any(end.code == ExitCode.PREEMPTED for end in ends):
            return ExitCode.PREEMPTED
        if self.reason:
            return self.reason_code
        if self.interrupted:
            return SIGNALLED + self.interrupted
        if all_done:
            return ExitCode.DONE
        code = self.process.returncode
        return code if SIGNALLED < code <= SIGNALLED + signal.SIGRTMAX else job_code(min(code, 0))

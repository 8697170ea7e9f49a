"""How far a build is, from the compiler's own percentages, and what of its output matters when it fails."""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PERCENT = re.compile(r"^\s*\[\s*(\d{1,3})%\]\s*(.*)$")
_TROUBLE = re.compile(
    r"\b(error:|CMake Error|undefined reference|No space left|Killed|cannot find -l|\w*Error: )|\*\*\* \["
)
# lines that name an error without being one: compiler command lines, and who reports that somebody failed
_ECHO = re.compile(r"^\s*(/\S+/(c\+\+|g\+\+|gcc|cc|clang|nvcc)\S* |error: subprocess-exited)")
_ADVICE = (
    (re.compile(r"Killed|out of memory|cannot allocate", re.I), "memory ran out: run again with --jobs 1"),
    (re.compile(r"No space left", re.I), "the disk is full: free space, or set TMPDIR to a larger disk"),
    (re.compile(r"unsupported GNU version|unsupported clang version", re.I),
     "nvcc refuses this compiler: set CXX to an older one that CUDA supports"),
)  # fmt: skip
# cmake and compilers explain an error in the lines after it
_FOLLOWING_LINES = 3
_MOST_LINES = 16
_EVERY_S = 10.0
_EVERY_PERCENT = 10


class Reporter(Protocol):
    """Tells a person how far a build is."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def say(self, text: str) -> None:
        """One line, at once."""

    def percent(self, done: int, what: str) -> None:
        """So many percent of the compilation are done; ``what`` is the step that begins."""


class LineReporter:
    """Lines on stderr, for logs: one every ten percent or ten seconds of progress."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_s, self._next_percent = 0.0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def say(self, text: str) -> None:
        """One line, at once."""
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def percent(self, done: int, what: str) -> None:
        """A line, if enough has changed since the last one."""
        now = self._clock()
        if done >= self._next_percent or now >= self._next_s:
            self.say(f"compiling: {done:3d} %  {what}")
            self._next_percent = (done // _EVERY_PERCENT + 1) * _EVERY_PERCENT
            self._next_s = now + _EVERY_S


class BarReporter(LineReporter):
    """A progress bar on a terminal while the compilers run, lines before and after."""

    _bar: Progress | None = None
    _task: TaskID

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def say(self, text: str) -> None:
        """One line, above the bar if there is one."""
        if self._bar is None:
            super().say(text)
        else:
            self._bar.console.print(text, markup=False, highlight=False)

    def percent(self, done: int, what: str) -> None:
        """Moves the bar, which is gone once all is compiled."""
        if done >= 100:
            self._stop()
            return
        if self._bar is None:
            self._bar = _open_bar()
            self._bar.start()
            self._task = self._bar.add_task(what, total=100)
        self._bar.update(self._task, completed=done, description=what)

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _open_bar() -> Progress:
    # rich is loaded only by a build that a person watches
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("compiling"), BarColumn(), TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(), TextColumn("{task.description}", markup=False),
    )  # fmt: skip
    return Progress(*columns, console=Console(stderr=True), transient=True)


def reporter() -> Reporter:
    """A bar on a terminal, lines elsewhere."""
    return BarReporter() if sys.stderr.isatty() else LineReporter()


class BuildOutput:
    """Reads a build's output line by line: passes progress on and keeps what a failure needs."""

    def __init__(self, on_percent: Callable[[int, str], None]) -> None:
        self._on_percent = on_percent
        self._last: deque[str] = deque(maxlen=15)
        self._trouble: list[str] = []
        self._follow = 0

    def line(self, text: str) -> None:
        """Takes the next line."""
        if match := _PERCENT.match(text):
            self._on_percent(min(int(match[1]), 100), _short(match[2]))
        if not text.strip():
            return
        self._last.append(text.rstrip())
        if _TROUBLE.search(text) and not _ECHO.match(text):
            self._follow = 1 + _FOLLOWING_LINES
        # the first errors are the cause, the later ones follow from them
        if self._follow > 0 and len(self._trouble) < _MOST_LINES:
            self._trouble.append(text.rstrip())
        self._follow -= 1

    def excerpt(self) -> list[str]:
        """The lines that matter: the first errors, or the end of the output if none calls itself one."""
        return [line[:300] for line in (self._trouble or self._last)]

    def advice(self) -> str:
        """What to do about the failure."""
        text = "\n".join([*self._trouble, *self._last])
        known = (advice for pattern, advice in _ADVICE if pattern.search(text))
        return next(known, "read the log from its end")


def _short(step: str) -> str:
    """A build step without the long path of its object file."""
    words = step.split()
    return words[-1].rsplit("/", 1)[-1].removesuffix(".o") if words else ""

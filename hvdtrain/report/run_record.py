"""Reads a run directory: what is damaged or missing is told, and the rest is read all the same."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from hvdtrain.errors import InputError
from hvdtrain.report.advice_record import AdviceRecord, read_advice
from hvdtrain.report.numbers import counted
from hvdtrain.scaling.profile import Profile, read_profile

_OF_A_RUN = ("status.json", "job.yaml", "metrics.jsonl", "profile.json")
_LARGEST = 1e300  # values beyond it are as good as infinite, and no axis could hold them


@dataclass(frozen=True)
class MetricLine:
    """A line of ``metrics.jsonl``: after which step and in which epoch, seconds since the start, the values.

    ``gaps`` are the names of values that are no finite numbers: a loss that became NaN is written as null.
    """

    step: int
    epoch: int | None
    time_s: float | None
    values: Mapping[str, float]
    gaps: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunRecord:
    """What a run directory tells; the parts that it lacks are empty or None."""

    path: Path
    job: Mapping[str, Any]
    job_text: str
    status: Mapping[str, Any]
    plan: Mapping[str, Any]
    lines: tuple[MetricLine, ...]
    profile: Profile | None
    advice: AdviceRecord | None
    notes: tuple[str, ...]

    def series(self, key: str) -> list[tuple[float, float]]:
        """(step, value) of each line that has the value."""
        return [(line.step, line.values[key]) for line in self.lines if key in line.values]

    @property
    def duration_s(self) -> float | None:
        """Seconds of training, of all lives of the run: each counts from its own start."""
        times = [line.time_s for line in self.lines if line.time_s is not None]
        ends = [one for one, after in pairwise(times) if after < one]
        return sum(ends) + times[-1] if times else None

    @property
    def keys(self) -> list[str]:
        """Names of all values, in the order in which they come up."""
        return list(dict.fromkeys(key for line in self.lines for key in line.values))


def read_run(path: Path) -> RunRecord:
    """Reads a run directory.

    Raises:
        InputError: The folder holds none of a run's files, or cannot be looked into.
    """
    try:
        is_run = any((path / name).is_file() for name in _OF_A_RUN)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if not is_run:
        legal = f"a folder with {', '.join(_OF_A_RUN[:-1])} or {_OF_A_RUN[-1]}"
        raise InputError("is no run directory", where=str(path), legal=legal, do="name one such as runs/NAME")
    notes: list[str] = []
    job_text = _text(path / "job.yaml", notes) or ""
    job, status = _job(job_text, notes), _json(path / "status.json", notes)
    return RunRecord(
        path,
        job,
        job_text,
        status,
        _json(path / "plan.json", notes),
        _lines(path / "metrics.jsonl", status.get("state"), notes),
        _profile(path / "profile.json", notes),
        _advice(path / "advice.json", notes),
        tuple(notes),
    )


def _text(path: Path, notes: list[str]) -> str | None:
    try:
        return path.read_text("utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        notes.append(f"{path.name} cannot be read: {error.strerror}")
        return None


def _job(text: str, notes: list[str]) -> Mapping[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        found = text
    if isinstance(found, Mapping) or not text:
        return found or {}
    notes.append("job.yaml is damaged and left out")
    return {}


def _json(path: Path, notes: list[str]) -> Mapping[str, Any]:
    text = _text(path, notes)
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, Mapping):
        return found
    notes.append(f"{path.name} is damaged and left out")
    return {}


def _lines(path: Path, state: Any, notes: list[str]) -> tuple[MetricLine, ...]:
    """The lines of metrics.

    Args:
        path: Their file.
        state: The run's, as ``status.json`` tells it: of one that ended nothing is still to come.
        notes: What the user should know, added to.
    """
    text = _text(path, notes)
    if not (text or "").strip():
        begin = "the run failed before it wrote metrics" if state == "failed" else "no metrics"
        begin += "" if state in ("failed", "done") else " yet"
        notes.append(f"{begin}: metrics.jsonl is " + ("missing" if text is None else "empty"))
        return ()
    raw = [line for line in (text or "").split("\n") if line.strip()]
    read = [_line(line) for line in raw]
    kept = [line for line in read if line is not None]
    if len(kept) < len(raw):
        first = read.index(None) + 1
        lost = len(raw) - len(kept)
        where = "the last, cut short" if lost == 1 and first == len(raw) else f"the first is line {first}"
        notes.append(f"metrics.jsonl: {lost} of {len(raw)} lines damaged and left out ({where})")
    kept.sort(key=lambda line: line.step)
    for key in dict.fromkeys(key for line in kept for key in line.gaps):
        steps = [line.step for line in kept if key in line.gaps]
        notes.append(
            f"{key} is no finite number in {counted(len(steps), 'line')}, the first at step {steps[0]:,}"
        )
    return tuple(kept)


def _line(text: str) -> MetricLine | None:
    """A line, None if it is damaged."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict):
        return None
    numbers = {key: float(value) for key, value in told.items() if is_number(value)}
    step = numbers.pop("step", None)
    if step is None or step < 0 or step != int(step):
        return None
    epoch, time_s = numbers.pop("epoch", None), numbers.pop("time_s", None)
    gaps = tuple(key for key, value in told.items() if _is_gap(value))
    return MetricLine(int(step), None if epoch is None else int(epoch), time_s, numbers, gaps)


def _is_gap(value: Any) -> bool:
    is_numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or (is_numeric and not is_number(value))


def is_number(value: Any) -> bool:
    """Whether a value of JSON is a number that can be drawn."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < _LARGEST and math.isfinite(value)


def _profile(path: Path, notes: list[str]) -> Profile | None:
    if not path.exists():
        return None
    try:
        return read_profile(path)
    except InputError as error:
        notes.append(f"left out: {path.name}: {error.what}")
        return None


def _advice(path: Path, notes: list[str]) -> AdviceRecord | None:
    if not path.exists():
        return None
    try:
        return read_advice(path)
    except InputError as error:
        notes.append(f"left out: {path.name}: {error.what}")
        return None

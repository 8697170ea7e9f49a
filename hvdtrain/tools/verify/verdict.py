"""Runs a request to its verdict, and puts that into words and into a document."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtrain.tools.verify.causes import UNKNOWN, Cause, explain
from hvdtrain.tools.verify.compare import Finding, compare, measure_drift
from hvdtrain.tools.verify.launches import Launches
from hvdtrain.tools.verify.records import Record
from hvdtrain.tools.verify.request import Request, Run


@dataclass(frozen=True)
class Verdict:
    """What came out.

    Attributes:
        request: What was verified.
        steps: Steps that were taken.
        largest: The largest difference, relative to its scale.
        first: The first difference beyond the tolerance; None where all runs are equal.
        cause: Of ``first``.
        proven: Steps that are shown to be equal.
        drift: How far rounding alone had grown by each step of a control run; empty where none was needed.
    """

    request: Request
    steps: int
    largest: Finding | None = None
    first: Finding | None = None
    cause: Cause | None = None
    proven: int = 0
    drift: tuple[float, ...] = ()

    @property
    def document(self) -> dict[str, Any]:
        """The verdict as JSON; a number that is not finite is null."""
        runs = self.request.runs
        return {
            "schema": 1,
            "equal": self.first is None,
            "steps": self.steps,
            "global_batch": self.request.job.batch.global_,
            "sizes": list(dict.fromkeys(run.size for run in runs)),
            "backend": list(dict.fromkeys(run.backend for run in runs)),
            "tolerance": self.request.tolerance,
            "proven_steps": self.proven,
            "drift": list(self.drift) or None,
            "largest": _described(self.largest) if self.largest else None,
            "first_difference": self._first() if self.first else None,
        }

    def _first(self) -> dict[str, Any]:
        assert self.first is not None
        assert self.cause is not None
        told = {
            "cause": self.cause.name,
            "evidence": self.cause.evidence,
            "advice": self.cause.advice or None,
        }
        return {**_described(self.first), **told}

    @property
    def _last(self) -> int:
        """The step whose drift is told: the last one, or the first that proves nothing."""
        return min(self.proven + 1, self.steps)

    @property
    def _grown(self) -> float:
        return self.drift[self._last]

    @property
    def text(self) -> str:
        """The verdict in a few lines."""
        runs = ", ".join(run.text for run in self.request.runs)
        if self.first is None:
            batch = self.request.job.batch.global_
            lines = [
                f"equal: {self.proven} {'step' if self.proven == 1 else 'steps'} of {batch} samples on {runs}"
            ]
            lines += [f"largest difference: {_words(self.largest)}"] if self.largest else []
            lines += [f"tolerance: {self.request.tolerance:g} of each tensor's norm"]
            if self.drift:
                lines += [f"rounding alone grows to {self._grown:.2g} by step {self._last}, in a control run"]
            if self.proven < self.steps:
                lines += [f"step {self._last} and later ones prove nothing: a fault could hide in that"]
            return "\n".join(lines)
        assert self.cause is not None
        lines = [f"different: {_words(self.first)}", f"likely cause: {self.cause.name}"]
        lines += [f"evidence: {self.cause.evidence}"]
        return "\n".join([*lines, f"advice: {self.cause.advice}"] if self.cause.advice else lines)


def verify(launches: Launches, folder: Path, say: Callable[[str], None]) -> Verdict:
    """Records the first run, then each other one, and compares until one differs.

    A difference that rounding may have grown to is held against a control run: the first one again, its
    parameters moved by rounding's size. At most three records lie on the disk at once.

    Args:
        launches: Of the request.
        folder: An empty folder for the records.
        say: Shows a line of progress.

    Raises:
        RunFailedError: A run did not come to its end.
    """
    request = launches.request
    reference = _record(launches, request.runs[0], folder, say)
    drift: list[float] = []
    largest: Finding | None = None
    proven = reference.num_steps
    for run in request.runs[1:]:
        other = _record(launches, run, folder, say)
        found = compare(reference, other, request.tolerance, drift)
        doubted = found.first
        if found.first and not drift and _may_be_rounding(found.first, request):
            drift = _measure_drift(launches, reference, folder, say)
            found = compare(reference, other, request.tolerance, drift)
        if found.largest and (largest is None or found.largest.relative > largest.relative):
            largest = found.largest
        proven = min(proven, found.proven)
        told = tuple(drift)
        if found.first:
            cause = explain(found.first, reference, other, request.job, request.tolerance)
            return Verdict(request, reference.num_steps, largest, found.first, cause, proven, told)
        if doubted and not proven:
            return Verdict(request, reference.num_steps, largest, doubted, _rounding(drift), proven, told)
        shutil.rmtree(other.folder)
    return Verdict(request, reference.num_steps, largest, proven=proven, drift=tuple(drift))


def _rounding(drift: Sequence[float]) -> Cause:
    return Cause(
        UNKNOWN,
        f"rounding alone, in a control run on the same ranks, grows to {drift[1]:.2g} in the first step",
        "verify in fp32 (--set precision=fp32), or with a larger batch",
    )


def _may_be_rounding(finding: Finding, request: Request) -> bool:
    """Whether more than one step, or half precision, lies between the difference and its origin."""
    return math.isfinite(finding.relative) and (finding.step > 1 or request.job.precision != "fp32")


def _measure_drift(
    launches: Launches, reference: Record, folder: Path, say: Callable[[str], None]
) -> list[float]:
    say(f"recording {reference.run.text} again, to see how rounding grows")
    place = folder / "control"
    place.mkdir()
    launches.record(reference.run, place, nudge=launches.request.rounding)
    drift = measure_drift(reference, Record(reference.run, place), launches.request.tolerance)
    shutil.rmtree(place)
    return drift


def _record(launches: Launches, run: Run, folder: Path, say: Callable[[str], None]) -> Record:
    say(f"recording {run.text}")
    place = folder / f"{run.backend}-{run.size}"
    place.mkdir()
    launches.record(run, place)
    return Record(run, place)


def _described(finding: Finding) -> dict[str, Any]:
    return {
        "step": finding.step,
        "what": finding.what,
        "name": finding.name or None,
        "size": finding.run.size,
        "backend": finding.run.backend,
        "absolute": finding.absolute if math.isfinite(finding.absolute) else None,
        "relative": finding.relative if math.isfinite(finding.relative) else None,
    }


def _words(finding: Finding) -> str:
    name = f" {finding.name}" if finding.name else ""
    size = f"{finding.relative:.2g} of its norm, at most {finding.absolute:.2g}"
    if finding.values:
        size = f"{finding.values[0]:.7g} and {finding.values[1]:.7g}"
    elif not math.isfinite(finding.relative):
        size = ""
    where = f"step {finding.step}, {finding.what}{name}, {finding.run.text}"
    return f"{where}: {size}" if size else where

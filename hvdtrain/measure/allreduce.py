"""Times allreduces: a function of the ranks that take part. All columns as nccl-tests defines them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

import torch

from hvdtrain.errors import HvdtrainError
from hvdtrain.measure.allreduce_crew import Crew, Sum
from hvdtrain.measure.allreduce_pace import WARM_UPS, Pace
from hvdtrain.measure.allreduce_request import DTYPES, LIBRARIES, AllreduceRequest, show_size
from hvdtrain.measure.network import Row, make_row

Emit = Callable[[dict[str, Any]], None]


class WrongSumError(HvdtrainError):
    """A library's allreduce did not give the sum."""


@dataclass(frozen=True)
class Series:
    """One library's allreduce of one type over one group of ranks.

    Attributes:
        library: Its name.
        dtype: A name of ``DTYPES``.
        ranks: The ranks, ascending; empty for all.
    """

    library: str
    dtype: str
    ranks: tuple[int, ...] = ()

    def size_of(self, crew: Crew) -> int:
        """Number of ranks."""
        return len(self.ranks) or crew.world.size


def measure_allreduce(crew: Crew, request: AllreduceRequest, emit: Emit) -> list[Row]:
    """Measures everything that was asked for; collective.

    Args:
        crew: The ranks.
        request: What to measure; libraries that are not there have been refused or left out.
        emit: Gets each row and note as an event, on rank 0 only.

    Returns:
        The rows, on all ranks.
    """
    planned = [list(group) for group in _groups(crew, request)]
    pace = Pace(request.limit_s, sum(map(len, planned)), request.repeat, may_stop=not request.sizes)
    rows: list[Row] = []
    for group in planned:
        first = group[0]
        with crew.group(first.library, first.ranks) as add_up:
            for series in group:
                rows += _measure_series(crew, series, add_up, request, pace, emit)
    return rows


def _groups(crew: Crew, request: AllreduceRequest) -> Iterator[list[Series]]:
    """The series, those together that one start of a library serves.

    Horovod comes last: its background thread runs as long as it is up, and once it was started over a part of
    the ranks it stays there (0.28.1 keeps them).
    """
    for library in sorted(request.libraries, key=LIBRARIES.index, reverse=True):
        dtypes = [dtype for dtype in request.dtypes if crew.carries(library, dtype)]
        parts: list[tuple[int, ...]] = [()]
        if crew.neighbours and crew.can_split(library):
            parts.append(crew.neighbours)
        for ranks in parts:
            if dtypes:
                yield [Series(library, dtype, ranks) for dtype in dtypes]


def _measure_series(
    crew: Crew, series: Series, add_up: Sum | None, request: AllreduceRequest, pace: Pace, emit: Emit
) -> list[Row]:
    """All sizes of a series, ascending; ranks that do not belong to it only agree."""
    sizes = request.sizes_on(crew.device.type == "cuda")
    began_s = time.perf_counter()
    pace.begin_series()
    rows: list[Row] = []
    for number, size in enumerate(sizes):
        spent_s = crew.channel.gather(time.perf_counter() - began_s)[0]
        if rows and not pace.has_time(rows[-1].time_s * size / rows[-1].bytes, spent_s):
            if crew.world.rank == 0:
                left = f"{show_size(size)} and above are left out: the time limit of {request.limit_s:g} s"
                emit({"event": "note", "text": f"{series.library} {series.dtype}: {left}"})
            break
        timer = _Timer(crew, series, add_up, size)
        time_s = timer.warm_up()
        times = timer.repeat(pace.repetitions(time_s, spent_s, len(sizes) - number))
        rows.append(_row(crew, series, size, times))
        if crew.world.rank == 0:
            emit({"event": "row", **asdict(rows[-1])})
    pace.end_series(crew.channel.gather(time.perf_counter() - began_s)[0])
    return rows


def _row(crew: Crew, series: Series, size: int, times: Sequence[float]) -> Row:
    level = "inside" if series.ranks or len(set(crew.hosts)) == 1 else "between"
    worst_s = quantiles(times, n=20, method="inclusive")[-1] if len(times) > 1 else times[0]
    return make_row(
        size,
        median(times),
        series.size_of(crew),
        dtype=series.dtype,
        library=series.library,
        level=level,
        min_s=min(times),
        p95_s=worst_s,
        repetitions=len(times),
    )


class _Timer:
    """Allreduces of one buffer. Every rank of the crew calls the same methods in the same order."""

    def __init__(self, crew: Crew, series: Series, add_up: Sum | None, size: int) -> None:
        self._crew, self._series, self._add_up = crew, series, add_up
        self._device = crew.buffer_device(series.library)
        # One name for all repetitions, as a gradient has in training: Horovod's cache knows its response.
        self._name = f"bench.{series.dtype}.{size}"
        self._num_ranks = series.size_of(crew)
        num_elements = size // DTYPES[series.dtype] if add_up else 0
        self._values = torch.ones(num_elements, dtype=getattr(torch, series.dtype), device=self._device)

    def warm_up(self) -> float:
        """Checks the sum once, then times the slowest rank's repetition without what happens only once."""
        self._once()
        if self._add_up is not None:
            self._check_sum()
        self._values.zero_()  # sums of sums would run over, and slow arithmetic down
        return min(self.repeat(WARM_UPS - 1))

    def _check_sum(self) -> None:
        off = float((self._values - self._num_ranks).abs().max())
        if not off <= 0.01 * self._num_ranks:  # half precision counts exactly to 2,048 only
            raise WrongSumError(
                f"{self._series.library} gave a wrong sum, not {self._num_ranks} for as many ones, in "
                f"{show_size(self._values.nbytes)} of {self._series.dtype}"
            )

    def repeat(self, repetitions: int) -> list[float]:
        """Seconds of each repetition, of the rank that took longest; the same on all ranks.

        Nothing stands between two repetitions: the reduction itself keeps the ranks together.
        """
        own = [self._once() for _ in range(repetitions if self._add_up else 0)]
        told = [times for times in self._crew.channel.gather(own) if times]
        return [max(times) for times in zip(*told, strict=True)]

    def _once(self) -> float:
        if self._add_up is None:
            return 0.0
        began_s = time.perf_counter()
        self._add_up(self._values, self._name)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter() - began_s

"""Which small runs narrow a prediction most, and what they cost.

A run measures figures that depend on the same unknowns as the prediction: an allreduce the links' speeds, a
profile on more ranks its own step and how long ranks wait. With g_i the change of figure i for one standard
deviation of each unknown and e_i its error, the covariance after a set of runs is

    C' = (C^-1 + sum_i g_i g_i' / e_i^2)^-1

whatever they will measure (the linear case of Bayesian experimental design; Chaloner and Verdinelli 1995,
Statistical Science 10:273). An allreduce leaves a link's speed as well known as that of a fitted link. The
prediction's width is the mean half-width of its bands of efficiency beyond one GPU (their I-optimality). Of
all sets of so many runs the cheapest is proposed that gets nine tenths of what the best set would narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from hvdtrain.scaling.calibration_learning import (
    WAIT_VARIATION,
    Place,
    figure_errors,
    waiting_s,
)
from hvdtrain.scaling.calibration_unknowns import (
    BETWEEN,
    FIGURE_ERROR,
    INSIDE,
    STRAGGLERS,
    UNKNOWNS,
    Belief,
    Vector,
    changes,
    moved,
    step_with,
)
from hvdtrain.scaling.estimation import solve
from hvdtrain.scaling.forecast import Band, efficiency_band, step_band
from hvdtrain.scaling.job import Job
from hvdtrain.scaling.network import Network
from hvdtrain.scaling.step import step_time

FITTED_LINK_SPREAD = 0.08  # of a fit whose residual is small, as ``network`` has it
NEAR_BEST = 0.9  # of what the best set would narrow
LEAST_GAIN = 0.005  # of efficiency: below half a point nothing is seen in the table
_START_S = 60.0  # of a run's allocation: starting ranks, imports, the first steps' allocations
_LOADER_S = 3.0  # a profile also reads the data alone
ALLREDUCE_S = 30.0
WARM_UP_STEPS = 10
_LEAST_STEPS, _MOST_STEPS = 50, 500
_SMALLER = 4  # a run takes at most this part of the ranks that are predicted


@dataclass(frozen=True)
class Run:
    """A calibration run.

    Attributes:
        kind: ``allreduce`` or ``profile``.
        nodes: How many nodes it takes.
        ranks_per_node: Ranks, and GPUs, on each.
        steps: Steps that a profile times; 0 for an allreduce.
        duration_s: About how long its allocation lasts.
    """

    kind: str
    nodes: int
    ranks_per_node: int
    steps: int
    duration_s: float

    @property
    def name(self) -> str:
        """Its name in files and tables."""
        return f"{self.kind}-{self.nodes}x{self.ranks_per_node}"

    @property
    def place(self) -> Place:
        """Its ranks."""
        return Place(self.nodes * self.ranks_per_node, self.ranks_per_node)

    @property
    def gpu_minutes(self) -> float:
        """GPUs times minutes."""
        return self.place.ranks * self.duration_s / 60


@dataclass(frozen=True)
class Target:
    """A number of GPUs whose step is predicted, and how it depends on the unknowns."""

    gpus: int
    alone_s: float
    step_s: float
    change: Vector

    def efficiency(self, belief: Belief) -> Band:
        """The predicted efficiency."""
        return efficiency_band(self.alone_s, step_band(self.step_s, belief.variance(self.change)))


@dataclass(frozen=True)
class Question:
    """What is to be predicted, and from what.

    Attributes:
        job: The job of the profile.
        network: The network as it is known.
        belief: What is known of the unknowns.
        targets: The numbers of GPUs beyond one.
        sampling_error: Of the profile's mean step, as a share of it.
        step_spread: Standard deviation of a step, as a share of it.
        profiled: Where the profile was taken.
    """

    job: Job
    network: Network
    belief: Belief
    targets: tuple[Target, ...]
    sampling_error: float
    step_spread: float
    profiled: Place

    def width(self, belief: Belief) -> float:
        """The prediction's width: mean half-width of its bands, as a fraction of efficiency."""
        bands = [target.efficiency(belief) for target in self.targets]
        return fmean((band.high - band.low) / 2 for band in bands) if bands else 0.0


@dataclass(frozen=True)
class Valued:
    """A run, or several, with what they narrow: the width by ``gain``, and which unknowns."""

    runs: tuple[Run, ...]
    belief: Belief
    gain: float

    @property
    def gpu_minutes(self) -> float:
        """What they cost together."""
        return sum(run.gpu_minutes for run in self.runs)

    def tells(self) -> tuple[str, ...]:
        """The unknowns of which they take a tenth of the variance or more, most first."""
        left = {name: self.belief.covariance[at][at] for at, name in enumerate(UNKNOWNS)}
        return tuple(sorted((name for name, one in left.items() if one < 0.9), key=lambda name: left[name]))


@dataclass(frozen=True)
class Proposal:
    """The chosen runs, what each would do alone, and all runs that were weighed, the cheapest first."""

    question: Question
    width: float
    chosen: Valued
    alone: tuple[Valued, ...]
    weighed: tuple[Valued, ...]

    @property
    def best_gain(self) -> float:
        """What the single best run narrows."""
        return max((one.gain for one in self.weighed), default=0.0)


def make_targets(job: Job, network: Network, belief: Belief, counts: Sequence[int]) -> tuple[Target, ...]:
    """The numbers of GPUs beyond one, with how their steps depend on the unknowns."""
    alone = step_time(job, network, 1)
    return tuple(
        Target(
            gpus,
            alone,
            step_with(job, network, gpus, belief.mean).total_s,
            changes(job, network, gpus, belief.mean),
        )
        for gpus in counts
        if gpus > 1
    )


def propose(question: Question, max_runs: int) -> Proposal:
    """The cheapest set of up to ``max_runs`` runs that narrows nearly as much as the best such set.

    Where no set narrows half a point, none is chosen.
    """
    runs = possible_runs(question)
    told = {run: _information(question, run) for run in runs}
    known = _inverse(question.belief.covariance)
    width, nothing = question.width(question.belief), Valued((), question.belief, 0.0)

    def value(chosen: tuple[Run, ...]) -> Valued:
        rows = [row for run in chosen for row in told[run]]
        size = range(len(UNKNOWNS))
        normal = [[known[i][j] + sum(row[i] * row[j] for row in rows) for j in size] for i in size]
        belief = Belief(question.belief.mean, _inverse(normal))
        return Valued(chosen, belief, width - question.width(belief))

    sets = [value(chosen) for number in range(1, max_runs + 1) for chosen in combinations(runs, number)] or [
        nothing
    ]
    best = max(one.gain for one in sets)
    chosen = nothing
    if best >= LEAST_GAIN:
        near = [one for one in sets if one.gain >= NEAR_BEST * best]
        chosen = min(near, key=lambda one: (one.gpu_minutes, -one.gain))
    single = tuple(sorted((value((run,)) for run in runs), key=lambda one: one.gpu_minutes))
    alone = tuple(one for one in single if one.runs[0] in chosen.runs)
    return Proposal(question, width, chosen, alone, single)


def possible_runs(question: Question) -> list[Run]:
    """The runs that are weighed: at most a quarter of the largest number of GPUs, or two.

    An allreduce over each level that was not measured; a profile on 2, 4 ... ranks of a node, and on two and
    four nodes. Of a link that was measured another measurement is not expected to tell more.
    """
    if not question.targets:
        return []
    network, last = question.network, question.targets[-1].gpus
    most, node = largest_run(last), network.gpus_per_node
    several = [nodes for nodes in (2, 4) if nodes <= network.nodes(last)]
    shares = [2**i for i in range(node.bit_length()) if 2**i < node] + [node]
    places = [(nodes, share) for nodes in (1, *several) for share in shares]
    profiles = [
        _profile_run(question, nodes, share)
        for nodes, share in places
        if 2 <= nodes * share <= most and Place(nodes * share, share) != question.profiled
    ]
    inside = node > 1 and not network.inside.is_measured
    between = bool(several) and not network.between.is_measured
    benches = [*([(1, 2)] if inside else []), *([(2, 1)] if between else [])]
    if inside and between:
        benches.append((2, 2))
    duration_s = _START_S + ALLREDUCE_S
    return [Run("allreduce", nodes, share, 0, duration_s) for nodes, share in benches] + profiles


def largest_run(last: int) -> int:
    """GPUs that a run may take where up to ``last`` are predicted."""
    return max(2, last // _SMALLER)


def _profile_run(question: Question, nodes: int, share: int) -> Run:
    # So many that they leave no more to chance than the model misses of any figure.
    wanted = math.ceil((question.step_spread / FIGURE_ERROR) ** 2)
    steps = min(_MOST_STEPS, max(_LEAST_STEPS, wanted))
    place = Place(nodes * share, share)
    step_s = step_time(question.job, place.of(question.network), place.ranks)
    duration_s = _START_S + _LOADER_S + (WARM_UP_STEPS + steps) * step_s
    return Run("profile", nodes, share, steps, duration_s)


def _information(question: Question, run: Run) -> list[Vector]:
    """What a run tells of the unknowns, g_i / e_i of each of its figures.

    An allreduce of a link: so much that its variance becomes that of a fitted one.
    """
    network = question.network
    if run.kind == "allreduce":
        links = ((INSIDE, network.inside, run.ranks_per_node > 1), (BETWEEN, network.between, run.nodes > 1))
        return [
            _only(at, math.sqrt(max(0.0, (level.spread / FITTED_LINK_SPREAD) ** 2 - 1)))
            for at, level, is_there in links
            if is_there and not level.is_measured
        ]
    job, place, shift = question.job, run.place, question.belief.mean
    there, usual = place.of(network), step_time(job, place.of(network), place.ranks)
    most, least, waits = (
        waiting_s(
            moved(job, there, [one + sign * (i == STRAGGLERS) for i, one in enumerate(shift)])[0], place.ranks
        )
        / usual
        for sign in (1, -1, 0)
    )
    chance = question.step_spread / math.sqrt(run.steps)
    step_error, wait_error = figure_errors(
        math.hypot(chance, question.sampling_error), WAIT_VARIATION * waits / math.sqrt(run.steps)
    )
    step = tuple(one / step_error for one in changes(job, there, place.ranks, shift))
    return [step, _only(STRAGGLERS, (most - least) / 2 / wait_error)]


def _only(at: int, value: float) -> Vector:
    return tuple(value if i == at else 0.0 for i in range(len(UNKNOWNS)))


def _inverse(matrix: Sequence[Sequence[float]]) -> tuple[Vector, ...]:
    size = range(len(matrix))
    columns = (solve([list(row) for row in matrix], [float(i == j) for i in size]) for j in size)
    return tuple(tuple(column) for column in columns)  # the matrix is symmetric, and so is this

"""What measured steps on more ranks say of a prediction's unknowns.

Two figures of each run are compared with the model: the logarithm of the step, and the share of it that ranks
wait for one another, which tells stragglers from the rest. Their errors are what the model misses of any
figure and what so few steps leave to chance, added in squares. The likeliest unknowns, and their covariance
by Laplace's method, are those of ``estimation``: its priors are Student's, so runs that lie far off move the
prediction to where they are, and leave the unknowns wider than runs that agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from hvdtrain.errors import InputError
from hvdtrain.scaling.calibration_points import MeasuredStep
from hvdtrain.scaling.calibration_unknowns import (
    BETWEEN,
    FIGURE_ERROR,
    INSIDE,
    PRIOR,
    UNKNOWNS,
    Belief,
    mattering,
    missed,
    moved,
)
from hvdtrain.scaling.estimation import Estimate, estimate
from hvdtrain.scaling.job import Job
from hvdtrain.scaling.network import Network
from hvdtrain.scaling.profile import Profile
from hvdtrain.scaling.step import step_time
from hvdtrain.scaling.straggling import excess_of_max

# Of ranks that take turns at being slow: standard deviation of the wait of one of two over its mean,
# sqrt(pi/2 - 1), for |x1 - x2| of two normals; of more ranks it is less.
WAIT_VARIATION = math.sqrt(math.pi / 2 - 1)
# A Student's prior of 4 degrees of freedom with this scale is as curved as a normal one where nothing is
# measured: what was not measured is then known as well as before.
_PRIOR_SCALE = math.sqrt(5 / 4)
_FAR = 2.0  # of the chi square that is expected: above it another explanation is looked for
_SLOWER = -2.0  # a link may be so slow that its reduction does not hide: a second explanation to start from
_BATCH_TOLERANCE = 0.02  # of samples a rank: an uneven batch differs by a sample


@dataclass(frozen=True)
class Place:
    """Ranks, and how many of them a full node holds."""

    ranks: int
    ranks_per_node: int

    def of(self, network: Network) -> Network:
        """The network with so many ranks a node."""
        return replace(network, gpus_per_node=self.ranks_per_node)


def waiting_s(job: Job, ranks: int) -> float:
    """Seconds of a step that the model has ranks wait for one another."""
    return excess_of_max(ranks) * job.imbalance_s + job.straggle_s(ranks) / math.sqrt(job.local_steps)


@dataclass(frozen=True)
class _Figures:
    """The two figures of a place as a function of the unknowns, with what was computed before."""

    job: Job
    network: Network
    place: Place
    usual_s: float
    known: dict[tuple[float, ...], float] = field(default_factory=dict)

    def __call__(self, shift: Sequence[float]) -> tuple[float, float]:
        """Logarithm of the step, and the waiting as a share of the usual step."""
        matter = mattering(self.job, self.network, self.place.ranks)
        key = tuple(one if at in matter else 0.0 for at, one in enumerate(shift))
        if key not in self.known:
            self.known[key] = step_time(*moved(self.job, self.network, key), self.place.ranks)
        alone_s, step_s = step_time(self.job, self.network, 1), self.known[key]
        waits = waiting_s(moved(self.job, self.network, shift)[0], self.place.ranks) / self.usual_s
        return math.log(step_s) + missed(1 - alone_s / step_s, self.place.ranks, shift), waits


def figure_errors(step_error: float, wait_error: float) -> tuple[float, float]:
    """Standard deviations of the two figures, from their sampling errors."""
    return math.hypot(FIGURE_ERROR, step_error), math.hypot(FIGURE_ERROR, wait_error)


def learn(job: Job, network: Network, steps: Sequence[MeasuredStep]) -> Belief:
    """What is believed after some measured steps; without any, what was believed before.

    Args:
        job: The job as its own profile has it.
        network: The network on which the steps were measured.
        steps: The steps.
    """
    if not steps:
        return PRIOR
    functions: list[_Figures] = []
    values: list[float] = []
    errors: list[float] = []
    for one in steps:
        place = Place(one.ranks, one.ranks_per_node)
        there = place.of(network)
        usual_s = step_time(job, there, place.ranks)
        functions.append(_Figures(job, there, place, usual_s))
        values += [math.log(one.step_s), one.wait_s / usual_s]
        errors += figure_errors(one.step_error, one.wait_error)

    def predict(shift: Sequence[float]) -> list[float]:
        told = [figure for function in functions for figure in function(shift)]
        return [figure / error for figure, error in zip(told, errors, strict=True)]

    measured = [value / error for value, error in zip(values, errors, strict=True)]
    found = _likeliest(predict, measured)
    return Belief(found.theta, found.covariance)


def _likeliest(predict: Callable[[Sequence[float]], list[float]], measured: Sequence[float]) -> Estimate:
    prior = PRIOR.mean, (_PRIOR_SCALE,) * len(UNKNOWNS)
    found = estimate(predict, measured, 1.0, prior, PRIOR.mean)
    if found.misfit <= _FAR * len(measured):
        return found
    slower = (tuple(_SLOWER if i == at else 0.0 for i in range(len(UNKNOWNS))) for at in (INSIDE, BETWEEN))
    others = [estimate(predict, measured, 1.0, prior, start) for start in slower]
    return min(found, *others, key=lambda one: one.misfit)


def measured_step(name: str, profile: Profile, base: Profile) -> MeasuredStep:
    """What a profile on more ranks measured of the job of ``base``.

    Args:
        name: What the run is called.
        profile: The run's.
        base: The job's own profile; its sampling error counts too, for the prediction rests on it.
    """
    step_s = fmean(one.step_s for one in profile.ranks)
    wait_s = fmean(one.wait_s for one in profile.ranks)
    return MeasuredStep(
        name,
        profile.size,
        max(host.ranks for host in profile.hosts),
        step_s,
        wait_s,
        math.hypot(sampling_error(profile), sampling_error(base)),
        WAIT_VARIATION * wait_s / step_s / math.sqrt(profile.steps),
    )


def sampling_error(profile: Profile) -> float:
    """Standard error of a profile's mean step, as a share of it.

    The spread of its steps over the root of their number.
    """
    variance = fmean(one.compute_std_s**2 for one in profile.ranks)
    return math.sqrt(variance) / fmean(one.step_s for one in profile.ranks) / math.sqrt(profile.steps)


def check_same_job(profile: Profile, base: Profile, where: str) -> None:
    """Refuses a profile of another job than ``base``, of one rank, or that contradicts it.

    Raises:
        InputError: It differs in a fact that the step depends on, or is faster than any step of ``base``.
    """
    if profile.size == 1:
        raise InputError("is a profile of one rank", where=where, do="profile the job on more ranks")
    for name, told, own in _facts(profile, base):
        if told != own:
            raise InputError(
                f"is a profile of another job: {name} is {told}, that of the calibrated one {own}",
                where=where,
                do="run the script that was written for it",
            )
    batch, own_batch = (one.global_batch / one.size for one in (profile, base))
    if abs(batch / own_batch - 1) > _BATCH_TOLERANCE:
        raise InputError(
            f"a rank takes {batch:g} samples a step, that of the calibrated profile {own_batch:g}",
            where=where,
            do="keep the samples of a rank, so that the global batch grows with the ranks",
        )
    step_s = fmean(one.step_s for one in profile.ranks)
    if step_s < base.step_s.min:
        raise InputError(
            f"contradicts the profile: {profile.size} ranks took {1e3 * step_s:.3g} ms a step, less than the "
            f"shortest of {base.size}, {1e3 * base.step_s.min:.3g} ms",
            where=where,
            do="profile both again on a machine that does nothing else",
        )


def _facts(profile: Profile, base: Profile) -> list[tuple[str, object, object]]:
    return [
        ("job", profile.job, base.job),
        ("device", profile.device, base.device),
        ("device_name", profile.device_name, base.device_name),
        ("precision", profile.precision, base.precision),
        ("compression", profile.compression, base.compression),
        ("accumulate", profile.accumulate, base.accumulate),
        ("gradients.bytes", profile.gradients.bytes, base.gradients.bytes),
    ]

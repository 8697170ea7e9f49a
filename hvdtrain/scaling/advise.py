"""Whether more GPUs are worth it for a profiled job: knee, verdict, what limits, what would help, gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvdtrain.errors import InputError
from hvdtrain.scaling.calibration_setting import gpus_of_node, setting_of
from hvdtrain.scaling.calibration_unknowns import moved
from hvdtrain.scaling.fit_in_memory import Fitting, fitting_of
from hvdtrain.scaling.forecast import Forecast, Prices, Row, Work, counts_up_to, make_forecast
from hvdtrain.scaling.network import Network
from hvdtrain.scaling.profile import Profile
from hvdtrain.scaling.verdict import Bounds, judge, losses
from hvdtrain.scaling.whatif import WhatIf, what_ifs

LEAST_EFFICIENCY = 0.5  # below it a sample costs more than twice what it costs on one GPU


@dataclass(frozen=True)
class Request:
    """What the user asks: see ``hvdtrain advise --help``. Deadline in hours, budget in the price's unit."""

    network: str | None = None
    max_gpus: int = 64
    gpus_per_node: int | None = None
    price: float | None = None
    energy_price: float | None = None
    deadline_h: float | None = None
    budget: float | None = None
    min_efficiency: float | None = None
    target_steps: int | None = None


@dataclass(frozen=True)
class Gate:
    """A limit that the user set, what was found, and whether it holds."""

    name: str
    limit: float
    found: float
    holds: bool
    sentence: str


@dataclass(frozen=True)
class Bar:
    """A cause of lost efficiency, as a fraction: the bars of a waterfall sum to the loss."""

    cause: str
    share: float


@dataclass(frozen=True)
class Advice:
    """All that ``hvdtrain advise PROFILE`` tells."""

    profile: Profile
    forecast: Forecast
    recommended_gpus: int
    worth_it: bool
    bottleneck: str
    verdict: str
    waterfall_gpus: int
    waterfall: tuple[Bar, ...]
    what_if: tuple[WhatIf, ...]
    gates: tuple[Gate, ...]
    memory: Fitting
    notes: tuple[str, ...]

    @property
    def is_refused(self) -> bool:
        """Whether a gate does not hold."""
        return not all(gate.holds for gate in self.gates)


def advise(profile: Profile, request: Request) -> Advice:
    """Forecasts and judges.

    Raises:
        InputError: A limit that nothing can be said about: a deadline without steps, a budget without a
        price.
    """
    node = gpus_of_node(profile, request.gpus_per_node)
    setting = setting_of(profile, request.network, node)
    _, network = moved(setting.job, setting.network, setting.belief.mean)
    work = _work(profile, request)
    prices = Prices(request.price, request.energy_price, profile.gpu.power_w if profile.gpu else None)
    _check(request, work, prices)
    counts = counts_up_to(max(request.max_gpus, 1), node)
    forecast = make_forecast(setting.job, setting.network, counts, work, prices, setting.belief)
    allowed = [row for row in forecast.rows if _meets(row, request)]
    recommended = _knee(allowed or forecast.rows)
    memory = fitting_of(profile)
    last = forecast.rows[-1]
    critical = work.critical_batch if work else None
    believed, now_s = setting.belief.mean, last.step.total_s
    changes = tuple(what_ifs(setting.job, setting.network, last.gpus, critical, believed, now_s))
    bounds = Bounds(memory, critical, bool(allowed) and len(allowed) < len(forecast.rows))
    bottleneck, verdict, worth_it = judge(forecast, recommended, bounds, changes)
    bars = tuple(Bar(cause, share) for cause, share in losses(forecast, last).items())
    notes = (*_notes(profile, request, (network, node), work), *_off_the_profile(profile, forecast))
    gates = tuple(_gates(forecast.rows, request))
    shown = recommended.gpus if worth_it else 1
    return Advice(
        profile,
        forecast,
        shown,
        worth_it,
        bottleneck,
        verdict,
        last.gpus,
        bars,
        changes,
        gates,
        memory,
        notes,
    )


def _work(profile: Profile, request: Request) -> Work | None:
    """Steps of the profiled global batch: asked for, or the job's own."""
    steps: float | None = request.target_steps or profile.total_steps
    if steps is None and profile.samples_per_epoch and profile.epochs:
        steps = profile.samples_per_epoch * profile.epochs / profile.global_batch
    if not steps:
        return None
    critical = profile.noise_scale.simple if profile.noise_scale else None
    return Work(steps, profile.global_batch, critical or None)


def _check(request: Request, work: Work | None, prices: Prices) -> None:
    if work is None and (request.deadline_h is not None or request.budget is not None):
        name = "--deadline" if request.deadline_h is not None else "--budget"
        do = "give --target-steps"
        raise InputError("the profile does not tell how many steps the job takes", where=name, do=do)
    if request.budget is not None and prices.cost(1, 1.0) is None:
        raise InputError(
            "a budget needs a price", where="--budget", do="give --price or, with a GPU, --energy-price"
        )


def _meets(row: Row, request: Request) -> bool:
    return all(
        (
            request.min_efficiency is None or row.efficiency.value >= request.min_efficiency,
            request.deadline_h is None
            or (row.time_s is not None and row.time_s.value <= 3600 * request.deadline_h),
            request.budget is None or (row.cost is not None and row.cost.value <= request.budget),
        )
    )


def _knee(rows: Sequence[Row]) -> Row:
    """The row of the largest power, GPUs times effective efficiency squared (Kleinrock).

    A doubling must then give at least the square root of two.
    """
    enough = [row for row in rows if row.effective_efficiency >= LEAST_EFFICIENCY] or [rows[0]]
    return max(enough, key=lambda row: row.gpus * row.effective_efficiency**2)


def _gates(rows: Sequence[Row], request: Request) -> list[Gate]:
    """The efficiency is that of the largest number of GPUs; time and cost must hold for some number."""
    gates = []
    last = rows[-1]
    if request.min_efficiency is not None:
        found, limit = last.efficiency.value, request.min_efficiency
        told = f"efficiency at {last.gpus} GPUs is {100 * found:.1f} %, the limit {100 * limit:.1f} %"
        gates.append(Gate("min_efficiency", limit, found, found >= limit, told))
    times = [row.time_s.value / 3600 for row in rows if row.time_s]
    if request.deadline_h is not None:
        told = f"the shortest time is {min(times):.3g} h, the deadline {request.deadline_h:g} h"
        gates.append(
            Gate("deadline_h", request.deadline_h, min(times), min(times) <= request.deadline_h, told)
        )
    costs = [row.cost.value for row in rows if row.cost]
    if request.budget is not None:
        told = f"the lowest cost is {min(costs):.4g}, the budget {request.budget:g}"
        gates.append(Gate("budget", request.budget, min(costs), min(costs) <= request.budget, told))
    both = [gate for gate in gates if gate.name != "min_efficiency"]
    if len(both) == 2 and all(gate.holds for gate in both):
        hold = any(
            row.time_s
            and row.cost
            and row.time_s.value / 3600 <= both[0].limit
            and row.cost.value <= both[1].limit
            for row in rows
        )
        if not hold:
            gates.append(
                Gate("both", 1, 0, False, "no number of GPUs keeps both the deadline and the budget")
            )
    return gates


def _off_the_profile(profile: Profile, forecast: Forecast) -> list[str]:
    """That the profile's own number of ranks is predicted to be another than it was measured."""
    row = next((row for row in forecast.rows if row.gpus == profile.size), None)
    measured_s = profile.global_batch / profile.samples_per_s
    if row is None or profile.size == 1 or row.step_s.low <= measured_s <= row.step_s.high:
        return []
    return [
        f"the profile measured {profile.samples_per_s:,.4g} samples/s on {profile.size} ranks, and "
        f"{row.samples_per_s.value:,.4g} are predicted: links that are named need not be those of the profile"
    ]


def _notes(
    profile: Profile, request: Request, machine: tuple[Network, int], work: Work | None
) -> tuple[str, ...]:
    network, node = machine
    notes = []
    if request.gpus_per_node is None:
        notes.append(f"GPUs per node not told: {node} assumed")
    if min(request.max_gpus, node) > 1:
        notes.append(f"inside a node: {network.inside.source}")
    if request.max_gpus > node:
        notes.append(f"between nodes: {network.between.source}")
    if profile.calibration:
        names = ", ".join(one.name for one in profile.calibration.steps) or "no profile on more ranks"
        notes.append(f"calibrated by runs: {names}; what the model missed there is in the rows")
    elif profile.size == 1:
        notes.append(
            "one rank was profiled: how ranks differ is taken from how its steps vary; profile two for more"
        )
    if request.energy_price is not None and profile.gpu is None:
        notes.append(
            "--energy-price counts for nothing: the profile tells no power, which is measured on GPUs only"
        )
    if work and work.critical_batch is None:
        notes.append(
            "the noise scale was not measured: a larger batch is taken to need no more samples, which is the "
            "best that it can do"
        )
    elif work and work.critical_batch:
        notes.append(f"critical batch about {work.critical_batch:.3g} samples, from the gradient noise scale")
    notes.append(
        f"each rank keeps its {profile.global_batch / profile.size:g} samples a step: with p times the "
        "global batch scale the learning rate by p with warm-up (Goyal et al. 2017), or keep it and tune"
    )
    return tuple(notes)

"""A calibration's folder: what was planned in it, and what its runs wrote."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from hvdtrain.errors import InputError
from hvdtrain.scaling.calibration_learning import Place, check_same_job, measured_step, waiting_s
from hvdtrain.scaling.calibration_points import Calibration, MeasuredStep
from hvdtrain.scaling.calibration_setting import Setting, library_of, setting_of
from hvdtrain.scaling.calibration_unknowns import FIGURE_ERROR, changes, moved, step_with
from hvdtrain.scaling.fields import Fields, read_document
from hvdtrain.scaling.forecast import BAND, Band, step_band
from hvdtrain.scaling.network import Level, Network, read_network
from hvdtrain.scaling.profile import Profile, parse_profile, read_profile
from hvdtrain.scaling.step import step_time

PLAN = "calibration.json"
CALIBRATED = "calibrated.json"
_MAKER = "hvdtrain calibrate PROFILE --out DIR"
_LOG_END = 200  # characters
_FAR = 3.0  # standard deviations


@dataclass(frozen=True)
class PlannedRun:
    """A run of the plan, and the files in its folder that it writes."""

    name: str
    kind: str
    nodes: int
    ranks_per_node: int

    def result(self, folder: Path) -> Path:
        """What it measured."""
        return folder / f"{self.name}.json"

    def log(self, folder: Path) -> Path:
        """What it printed."""
        return folder / f"{self.name}.log"

    def script(self, folder: Path) -> Path:
        """Its batch script."""
        return folder / f"{self.name}.sh"


@dataclass(frozen=True)
class Plan:
    """What a calibration was to narrow, and by which runs."""

    profile: Profile
    network: str | None
    gpus_per_node: int
    max_gpus: int
    runs: tuple[PlannedRun, ...]


@dataclass(frozen=True)
class Compared:
    """A figure of a run: predicted, with a band where it has one, and measured."""

    figure: str
    unit: str
    predicted: Band
    measured: float

    @property
    def off(self) -> float | None:
        """Measured over predicted, less 1; None where nothing was predicted."""
        return self.measured / self.predicted.value - 1 if self.predicted.value else None


@dataclass(frozen=True)
class Result:
    """What became of a run: ``measured``, ``missing``, or ``unfinished`` where only its log is there."""

    run: PlannedRun
    state: str
    note: str = ""
    step: MeasuredStep | None = None
    compared: tuple[Compared, ...] = ()


@dataclass(frozen=True)
class Reading:
    """A plan's results, and the prediction's setting before them and with them.

    ``others`` are JSON files of the folder that are no result of the plan, and were not read.
    """

    plan: Plan
    results: tuple[Result, ...]
    others: tuple[str, ...]
    profile: Profile
    before: Setting
    after: Setting


def read_plan(folder: Path) -> Plan:
    """Reads what ``hvdtrain calibrate --out`` wrote.

    Raises:
        InputError: There is no such folder, it holds no calibration, or the plan is damaged.
    """
    if not folder.is_dir():
        raise InputError("there is no such folder", where=str(folder), do=f"make one with {_MAKER}")
    if not (folder / PLAN).is_file():
        raise InputError(f"holds no {PLAN}", where=str(folder), do=f"make one with {_MAKER}")
    fields = read_document(folder / PLAN, "calibration", _MAKER)
    if fields.values.get("kind") != "calibration":
        raise fields.wrong("kind", "is not calibration", do=f"make one with {_MAKER}")
    network = None if fields.values.get("network") is None else fields.text("network")
    return Plan(
        parse_profile(fields.object("profile")),
        network,
        fields.count("gpus_per_node", 1),
        fields.count("max_gpus", 1),
        tuple(_planned(one) for one in fields.objects("runs")),
    )


def _planned(fields: Fields) -> PlannedRun:
    run = PlannedRun(
        fields.text("name"), fields.text("kind"), fields.count("nodes", 1), fields.count("ranks_per_node", 1)
    )
    if run.kind not in ("allreduce", "profile"):
        raise fields.wrong("kind", f"is {run.kind!r}", "allreduce, profile")
    if run.name != Path(run.name).name:
        raise fields.wrong("name", f"is {run.name!r}", "a file's name without its folder")
    return run


def read_results(folder: Path) -> Reading:
    """Reads the runs' results and narrows the prediction by them.

    Raises:
        InputError: The folder is no calibration, a result is damaged, of another job or contradicts the
            profile, or no run has a result yet.
    """
    plan = read_plan(folder)
    before = setting_of(plan.profile, _unless_calibrated(plan), plan.gpus_per_node)
    results = tuple(_result(folder, plan, run, before) for run in plan.runs)
    if not any(one.state == "measured" for one in results):
        told = "; ".join(f"{one.run.name} {one.state}" for one in results) or "the plan has no run"
        raise InputError(
            f"no run has a result yet: {told}", where=str(folder), do="submit its scripts: sbatch NAME.sh"
        )
    old = plan.profile.calibration
    networks = [
        str(one.run.result(folder).absolute())
        for one in results
        if one.state == "measured" and one.run.kind == "allreduce"
    ]
    known = Calibration(
        old.network if old else plan.network,
        (*(old.measured if old else ()), *networks),
        plan.gpus_per_node,
        (*(old.steps if old else ()), *(one.step for one in results if one.step)),
    )
    profile = replace(plan.profile, calibration=known)
    own = {PLAN, CALIBRATED, *(run.result(folder).name for run in plan.runs)}
    others = tuple(sorted({path.name for path in folder.glob("*.json")} - own))
    return Reading(plan, results, others, profile, before, setting_of(profile, None, plan.gpus_per_node))


def _unless_calibrated(plan: Plan) -> str | None:
    return None if plan.profile.calibration else plan.network


def _result(folder: Path, plan: Plan, run: PlannedRun, before: Setting) -> Result:
    file = run.result(folder)
    if not file.exists():
        if run.log(folder).exists():
            return Result(run, "unfinished", f"no result yet; its log ends: {_end_of(run.log(folder))}")
        return Result(run, "missing", f"not run: sbatch {run.script(folder)}")
    if run.kind == "allreduce":
        return _network_result(file, plan, run, before.network)
    profile = read_profile(file)
    check_same_job(profile, plan.profile, str(file))
    step = measured_step(run.name, profile, plan.profile)
    notes = []
    if (step.ranks, step.ranks_per_node) != (run.nodes * run.ranks_per_node, run.ranks_per_node):
        nodes = "1 node" if len(profile.hosts) == 1 else f"{len(profile.hosts)} nodes"
        notes.append(f"ran on {nodes} with up to {step.ranks_per_node} ranks, not as planned")
    compared = _compare_steps(profile, step, before)
    work = compared[1]
    if work.off is not None and abs(math.log1p(work.off)) > _FAR * math.hypot(FIGURE_ERROR, step.step_error):
        notes.append(
            f"a rank's own work was {100 * work.off:+.0f} % off: this machine or its load was another than "
            "the profile's"
        )
    return Result(run, "measured", "; ".join(notes), step, compared)


def _end_of(log: Path) -> str:
    try:
        lines = log.read_text("utf-8", errors="replace").strip().splitlines()
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return lines[-1][:_LOG_END] if lines else "it is empty"


def _compare_steps(profile: Profile, step: MeasuredStep, before: Setting) -> tuple[Compared, ...]:
    place = Place(step.ranks, step.ranks_per_node)
    job, there, shift = before.job, place.of(before.network), before.belief.mean
    predicted = step_with(job, there, step.ranks, shift).total_s
    band = step_band(predicted, before.belief.variance(changes(job, there, step.ranks, shift)))
    waits = waiting_s(moved(job, there, shift)[0], step.ranks)
    work = step_time(job, there, 1)
    busy = fmean(one.busy_s for one in profile.ranks)
    hidden_less = max(0.0, predicted - waits - work)
    return (
        Compared("step", "s", band, step.step_s),
        Compared("own work of a rank", "s", _exact(work), busy),
        Compared("waiting for slower ranks", "s", _exact(waits), step.wait_s),
        Compared("communication", "s", _exact(hidden_less), step.step_s - step.wait_s - busy),
    )


def _exact(value: float) -> Band:
    return Band(value, value, value)


def _network_result(file: Path, plan: Plan, run: PlannedRun, before: Network) -> Result:
    found = read_network(str(file), plan.gpus_per_node, library_of(plan.profile))
    compared: list[Compared] = []
    missed = []
    levels = (
        ("inside a node", run.ranks_per_node > 1, before.inside, found.inside, found.inside is found.between),
        ("between nodes", run.nodes > 1, before.between, found.between, False),
    )
    for name, is_planned, old, new, is_other in levels:
        if new.is_measured and not is_other:
            compared += _compare_links(name, old, new)
        elif is_planned:
            missed.append(f"the link {name} was not measured: see the file's hosts")
    return Result(run, "measured", "; ".join(missed), None, tuple(compared))


def _compare_links(name: str, old: Level, new: Level) -> list[Compared]:
    factor = math.exp(BAND * old.spread)
    speeds = [1 / level.wire.beta_s if level.wire.beta_s else math.inf for level in (old, new)]
    found = []
    if all(map(math.isfinite, speeds)):
        band = Band(speeds[0], speeds[0] / factor, speeds[0] * factor)
        found.append(Compared(f"bandwidth {name}", "B/s", band, speeds[1]))
    message = old.wire.alpha_s
    band = Band(message, message / factor, message * factor)
    return [*found, Compared(f"a message {name}", "s", band, new.wire.alpha_s)]

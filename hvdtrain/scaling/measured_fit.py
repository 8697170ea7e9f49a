"""Bends the priors of ``measured_model`` to measured rows; a row that contradicts the others is left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hvdtrain.scaling import measured_model as model
from hvdtrain.scaling.drawing import Draw, draws
from hvdtrain.scaling.estimation import Estimate, estimate, make_misfit
from hvdtrain.scaling.measured_input import Measured
from hvdtrain.scaling.measured_model import Facts
from hvdtrain.scaling.network import named_level

# Spread of a throughput's logarithm between runs; the larger ones for rows that nothing else explains.
_ROW_NOISE, _ROUGH = 0.012, (0.04, 0.12, 0.3)
_NUM_DRAWS = 400
# Chi square that a row must cost to be taken for an outlier; and where it is the only one beyond a node.
_OUTLIER, _LONE_OUTLIER = 25.0, 90.0
_RIVAL, _SAME = 8.0, 0.1  # chi square by which, and logarithm within which, explanations are told apart
_FAR_OFF, _FAR_OFF_AT_END = 0.15, 0.4  # as logarithms
_SUPERLINEAR = 1.03


@dataclass(frozen=True)
class Fit:
    """The model bent to the rows.

    Attributes:
        facts: What was known.
        estimated: The unknowns, with their covariance.
        drawn: Unknowns drawn from it.
        rows: The rows that were fitted, without the one that is left out.
        base: GPUs and samples/s of the first row that was fitted.
        noise: Spread of the rows' logarithm, as they were fitted.
        measured_to: GPUs of the largest row.
        left_out: GPUs of the row that contradicts the others, None if none does.
        is_odd: Whether rows contradict what is possible: then an efficiency above one is not held back.
        notes: What was assumed, and what is odd about the rows, as sentences.
    """

    facts: Facts
    estimated: Estimate
    drawn: Sequence[Draw]
    rows: Mapping[int, float]
    base: tuple[int, float]
    noise: float
    measured_to: int
    left_out: int | None
    is_odd: bool
    notes: tuple[str, ...]

    @property
    def is_explained(self) -> bool:
        """Whether a mechanism follows the rows closely enough to be named as the cause of a loss."""
        return self.noise <= _ROUGH[0]


def fit(measured: Measured) -> Fit:
    """Bends the model's priors to the measured rows."""
    facts, assumed = _facts(measured)
    rows = dict(measured.rows)
    modes, left_out = _estimates(facts, rows), None
    # Leaving a row out cannot mend more than all rows are bent.
    if len(rows) >= 3 and modes[0].misfit > _OUTLIER:
        trials = {gpus: _estimates(facts, _without(rows, gpus)) for gpus in rows}
        for gpus, trial in sorted(trials.items(), key=lambda pair: pair[1][0].misfit):
            if _is_outlier(facts, rows, gpus, (modes[0], trial[0])):
                modes, left_out = trial, gpus
                break
    kept = _without(rows, left_out)
    base = next(iter(kept.items()))
    notes = [*assumed, *_contradictions(rows, left_out)]
    if left_out is not None and left_out < base[0]:
        notes.append(
            f"efficiencies are relative to the row of {base[0]} GPUs, the first that is not left out"
        )
    modes, noise = _roughly(facts, kept, modes)
    if noise > _ROW_NOISE:
        notes.append(
            "no mechanism explains the rows closely: they are taken to be rough, to "
            f"{100 * noise:.0f} %, and the band is wider"
        )
    if len(kept) == 1:
        notes.append(
            "one row alone tells the speed of a GPU, not how the job scales: what is predicted rests on the "
            "mechanism and on what other sites have; a second row at the next larger number of GPUs narrows "
            "the band most"
        )
    drawn = _draws(facts, kept, modes, noise)
    is_odd = bool(_oddities(kept))
    return Fit(facts, modes[0], drawn, kept, base, noise, max(kept), left_out, is_odd, tuple(notes))


def _roughly(facts: Facts, rows: Mapping[int, float], modes: list[Estimate]) -> tuple[list[Estimate], float]:
    """Explanations that fit, and with what noise: rather rough rows than an unheard-of machine."""
    for noise in (_ROW_NOISE, *_ROUGH):
        if noise > _ROW_NOISE:
            modes = _estimates(facts, rows, noise)
        if modes[0].misfit <= _OUTLIER:
            break
    return modes, noise


def _facts(measured: Measured) -> tuple[Facts, list[str]]:
    network = measured.machine()
    inside, between = network.inside, network.between
    gpus, rate = next(iter(measured.rows.items()))
    node = measured.node_size()
    top = max(*measured.rows, *measured.predict)
    samples = measured.batch_per_gpu * measured.accumulate if measured.batch_per_gpu else None
    notes = []
    if samples is not None and not model.is_plausible(samples, rate / gpus):
        step_ms = 1e3 * samples / (rate / gpus)
        notes.append(
            f"a batch of {samples:g} at {rate / gpus:g}/s a GPU is a step of {step_ms:.2g} ms: they seem to "
            "count different things (sentences and tokens?), so the batch is not used"
        )
        samples = None
    if samples is None:
        step_s = measured.accumulate * model.USUAL_STEP_S
        notes.append(
            f"batch per GPU not told: a step of {step_s:.2g} s is assumed, within a factor of two; "
            "the band is wider"
        )
    bytes_reduced = measured.params * measured.bytes_per_param
    is_prior = between.link is not None and not between.link.is_told
    if between.link is not None and is_prior and samples is not None:
        step_s = samples / measured.accumulate / max(value / count for count, value in measured.rows.items())
        between = named_level(model.fast_enough(between.link, bytes_reduced, step_s))
    if measured.gpus_per_node is None and top > 1:
        notes.append(f"GPUs per node not told: {node} assumed")
    if min(top, node) > 1:
        notes.append(f"inside a node: {inside.source}")
    if top > node:
        wider = "; the band is wider" if is_prior else ""
        notes.append(f"between nodes: {between.source}{wider}")
    return Facts(bytes_reduced, node, inside, between, samples, measured.accumulate), notes


def _logs(facts: Facts, rows: Mapping[int, float]) -> Callable[[Sequence[float]], list[float]]:
    def logs(theta: Sequence[float]) -> list[float]:
        return [math.log(model.throughput(facts, theta, gpus)) for gpus in rows]

    return logs


def _prior(facts: Facts, rows: Mapping[int, float]) -> model.Prior:
    rates = sorted(value / gpus for gpus, value in rows.items())
    return model.make_prior(facts, rates[len(rates) // 2])


def _estimates(facts: Facts, rows: Mapping[int, float], noise: float = _ROW_NOISE) -> list[Estimate]:
    """Explanations of the rows, the best first.

    Searches begin at several places: the model has kinks, behind which one does not see, and a loss inside
    the node may be of a slow link or of stragglers. Those that are hardly worse than the best are kept.
    """
    prior = _prior(facts, rows)
    best_rate = max(value / gpus for gpus, value in rows.items())
    plateau = max(value / math.ceil(gpus / facts.gpus_per_node) for gpus, value in rows.items())
    slow = math.log(0.2)
    starts = [{}, {model.LOADER: math.log(1.05 * plateau)}, {model.INSIDE: slow}, {model.BETWEEN: slow}]
    values = [math.log(value) for value in rows.values()]
    found: list[Estimate] = []
    for moved in starts if len(rows) > 1 else starts[:1]:
        start = list(prior.centre)
        start[model.COMPUTE] = start[model.SAMPLES] - math.log(best_rate)
        for index, value in moved.items():
            start[index] = value
        known = (prior.centre, prior.spread)
        found.append(estimate(_logs(facts, rows), values, noise, known, start))
    found.sort(key=lambda one: one.misfit)
    kept: list[Estimate] = []
    for one in found:
        if one.misfit < found[0].misfit + _RIVAL and all(_differs(one, other) for other in kept):
            kept.append(one)
    return kept


def _differs(one: Estimate, other: Estimate) -> bool:
    return max(abs(a - b) for a, b in zip(one.theta, other.theta, strict=True)) > _SAME


def _draws(facts: Facts, rows: Mapping[int, float], modes: Sequence[Estimate], noise: float) -> list[Draw]:
    prior = _prior(facts, rows)
    values = [math.log(value) for value in rows.values()]
    logs = _logs(facts, rows)
    misfit = make_misfit(logs, values, noise, prior.centre, prior.spread)
    return draws(modes, _NUM_DRAWS, misfit, logs, prior.spread)


def _is_outlier(facts: Facts, rows: Mapping[int, float], gpus: int, fits: tuple[Estimate, Estimate]) -> bool:
    """Whether the rows agree without this one, and not with it.

    Two rows agree with anything: so of three, one is an outlier only if it takes a contradiction away with
    it.
    """
    whole, without = fits
    # A row that is alone beyond the node may be low for a reason that no other row can show.
    alone = [one for one in rows if one > facts.gpus_per_node] == [gpus]
    if whole.misfit - without.misfit < (_LONE_OUTLIER if alone else _OUTLIER):
        return False
    expected = model.throughput(facts, without.theta, gpus)
    off = abs(math.log(rows[gpus] / expected))
    if off < _FAR_OFF:
        return False
    if _oddities(_without(rows, gpus)):
        return False
    at_end = gpus in (
        min(rows),
        max(rows),
    )  # what lies beyond the other rows is extrapolated, not contradicted
    return bool(_oddities(rows)) or (len(rows) > 3 and (not at_end or off > _FAR_OFF_AT_END))


def _without(rows: Mapping[int, float], gpus: int | None) -> dict[int, float]:
    return {one: value for one, value in rows.items() if one != gpus}


def _contradictions(rows: Mapping[int, float], left_out: int | None) -> list[str]:
    """What is odd about the rows, as sentences."""
    odd = _oddities(_without(rows, left_out))
    if left_out is None:
        return odd
    unit = "GPU" if left_out == 1 else "GPUs"
    return [f"the row of {left_out} {unit} contradicts the others and is left out: measure it again", *odd]


def _oddities(rows: Mapping[int, float]) -> list[str]:
    """More than linear, and slower with more GPUs, each as a sentence."""
    notes = []
    for (few, low), (many, high) in pairwise(rows.items()):
        ratio = high / low / (many / few)
        if ratio > _SUPERLINEAR:
            notes.append(
                f"{few} to {many} GPUs gain more than linear ({100 * ratio:.0f} %): the rows are not of "
                "the same job or machine, or the smaller one was disturbed"
            )
        if high < low:
            notes.append(
                f"{many} GPUs are slower in all than {few}: the job slows down with more, or a row is wrong; "
                "rates are of all GPUs together, and steps a second are to be multiplied by the GPUs"
            )
    return notes

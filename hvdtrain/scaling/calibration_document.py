"""The JSON documents of ``hvdtrain calibrate``, schema 1: a proposal, and the results of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hvdtrain.scaling.calibration_results import Compared, Reading, Result
from hvdtrain.scaling.calibration_runs import Proposal, Question, Valued, largest_run
from hvdtrain.scaling.calibration_setting import Setting, question_of
from hvdtrain.scaling.calibration_unknowns import FIGURE_ERROR, UNKNOWNS
from hvdtrain.scaling.forecast import Forecast, counts_up_to, make_forecast
from hvdtrain.scaling.profile import Profile

_SAME = 0.005  # of a band's width: what a difference must be to be told


def proposal_document(profile: Profile, network: str | None, proposal: Proposal) -> dict[str, Any]:
    """What is proposed, and why; widths and gains are fractions of efficiency."""
    question, chosen = proposal.question, proposal.chosen
    last = question.targets[-1].gpus if question.targets else 1
    return {
        "schema": 1,
        "kind": "calibration",
        "job": profile.job,
        "network": network,
        "gpus_per_node": question.network.gpus_per_node,
        "max_gpus": last,
        "verdict": _verdict(proposal, last),
        "width": proposal.width,
        "expected_width": proposal.width - chosen.gain,
        "gpu_minutes": chosen.gpu_minutes,
        "unknowns": _unknowns(question),
        "predictions": _predictions(question, chosen),
        "runs": [_run(one) for one in proposal.alone],
        "weighed": [_run(one) for one in proposal.weighed],
    }


def _verdict(proposal: Proposal, last: int) -> str:
    width, gain, number = proposal.width, proposal.chosen.gain, len(proposal.chosen.runs)
    if not proposal.question.targets:
        return "One GPU is what was profiled: there is nothing to predict."
    if not number:
        best = 100 * max(0.0, proposal.best_gain)
        return (
            f"No small run narrows this prediction by half a point: its bands are {_points(width)} to each "
            f"side up to {last} GPUs, the best one would take {best:.1f} off. What is left of them no run "
            f"on up to {largest_run(last)} GPUs tells."
        )
    what, verb = ("1 run", "narrows") if number == 1 else (f"{number} runs", "narrow")
    return (
        f"{what} of {proposal.chosen.gpu_minutes:.3g} GPU-minutes {verb} the prediction from "
        f"{_points(width)} to {_points(width - gain)} to each side, the mean up to {last} GPUs."
    )


def _points(width: float) -> str:
    return f"{100 * width:.1f} points"


def _unknowns(question: Question) -> list[dict[str, Any]]:
    """Shares of the variance of the largest number's step; with that of any figure they sum to 1."""
    if not question.targets:
        return []
    parts = [*question.belief.parts(question.targets[-1].change), FIGURE_ERROR**2]
    names = (*UNKNOWNS, "any figure")
    return [{"name": name, "share": part / sum(parts)} for name, part in zip(names, parts, strict=True)]


def _predictions(question: Question, chosen: Valued) -> list[dict[str, Any]]:
    rows = []
    for target in question.targets:
        now, then = target.efficiency(question.belief), target.efficiency(chosen.belief)
        rows.append(
            {
                "gpus": target.gpus,
                "efficiency": now.value,
                "efficiency_low": now.low,
                "efficiency_high": now.high,
                "expected_low": then.low,
                "expected_high": then.high,
            }
        )
    return rows


def _run(one: Valued) -> dict[str, Any]:
    (run,) = one.runs
    return {
        "name": run.name,
        "kind": run.kind,
        "nodes": run.nodes,
        "ranks_per_node": run.ranks_per_node,
        "steps": run.steps or None,
        "duration_s": run.duration_s,
        "gpu_minutes": run.gpu_minutes,
        "tells": list(one.tells()),
        "gain": one.gain,
        "gain_per_gpu_hour": one.gain / (run.gpu_minutes / 60),
    }


def reading_document(reading: Reading, calibrated: str) -> dict[str, Any]:
    """What the runs told: states, predicted beside measured, the former prediction and the present one."""
    plan = reading.plan
    widths = [
        question_of(plan.profile, setting, plan.max_gpus).width(setting.belief)
        for setting in (reading.before, reading.after)
    ]
    before, after = (_forecast(setting, plan.max_gpus) for setting in (reading.before, reading.after))
    missing = [one.run.name for one in reading.results if one.state != "measured"]
    return {
        "schema": 1,
        "kind": "calibration-results",
        "job": plan.profile.job,
        "max_gpus": plan.max_gpus,
        "gpus_per_node": plan.gpus_per_node,
        "verdict": _told(widths, reading, missing),
        "former_width": widths[0],
        "width": widths[1],
        "narrowed": widths[1] < widths[0],
        "complete": not missing,
        "runs": [_result(one) for one in reading.results],
        "others": list(reading.others),
        "predictions": _rows(before, after),
        "calibrated": calibrated,
    }


def _forecast(setting: Setting, max_gpus: int) -> Forecast:
    counts = counts_up_to(max_gpus, setting.network.gpus_per_node)
    return make_forecast(setting.job, setting.network, counts, belief=setting.belief)


def _told(widths: Sequence[float], reading: Reading, missing: Sequence[str]) -> str:
    former, now = (_points(width) for width in widths)
    outside = [one.run.name for one in reading.results if any(map(_is_outside, one.compared[:1]))]
    parts = [f"Outside the band that was predicted of them: {', '.join(outside)}"] if outside else []
    if abs(widths[1] - widths[0]) < _SAME * widths[0]:
        parts.append(f"the prediction is as wide as before, {now} to each side: the runs tell nothing of it")
    elif widths[1] < widths[0]:
        parts.append(f"the prediction is narrower: {now} to each side, {former} before")
    else:
        parts.append(
            f"the prediction is wider: {now} to each side, {former} before; the runs lie farther off than "
            "it took itself to be sure, so it knew less than it said"
        )
    if missing:
        parts.append(f"without a result: {', '.join(missing)}")
    told = "; ".join(parts)
    return f"{told[0].upper()}{told[1:]}."


def _is_outside(one: Compared) -> bool:
    return not one.predicted.low <= one.measured <= one.predicted.high


def _result(one: Result) -> dict[str, Any]:
    return {
        "name": one.run.name,
        "kind": one.run.kind,
        "state": one.state,
        "note": one.note,
        "compared": [
            {
                "figure": figure.figure,
                "unit": figure.unit,
                "predicted": figure.predicted.value,
                "predicted_low": figure.predicted.low,
                "predicted_high": figure.predicted.high,
                "measured": figure.measured,
                "off": figure.off,
            }
            for figure in one.compared
        ],
    }


def _rows(before: Forecast, after: Forecast) -> list[Mapping[str, Any]]:
    return [
        {
            "gpus": new.gpus,
            "step_time_s": new.step_s.value,
            "efficiency": new.efficiency.value,
            "efficiency_low": new.efficiency.low,
            "efficiency_high": new.efficiency.high,
            "former_step_time_s": old.step_s.value,
            "former_efficiency": old.efficiency.value,
            "former_low": old.efficiency.low,
            "former_high": old.efficiency.high,
        }
        for old, new in zip(before.rows, after.rows, strict=True)
    ]

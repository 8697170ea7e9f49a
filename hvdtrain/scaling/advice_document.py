"""The JSON documents of ``hvdtrain advise``, schema 1; the report reads them too."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hvdtrain.scaling.advise import Advice
from hvdtrain.scaling.forecast import Band, Row
from hvdtrain.scaling.measured import Prediction
from hvdtrain.scaling.measured_answer import Answer
from hvdtrain.scaling.measured_input import Measured


def advice_document(advice: Advice) -> dict[str, Any]:
    """The document of advice from a profile: efficiencies are fractions relative to one GPU."""
    profile = advice.profile
    last = advice.forecast.at(advice.waterfall_gpus)
    work = advice.forecast.work
    return {
        "schema": 1,
        "kind": "advice",
        "source": "profile",
        "job": profile.job,
        "profile": {
            "size": profile.size,
            "hosts": [asdict(host) for host in profile.hosts],
            "device_name": profile.device_name,
            "global_batch": profile.global_batch,
            "steps": profile.steps,
            "samples_per_s": profile.samples_per_s,
        },
        "predictions": [_row(row) for row in advice.forecast.rows],
        "recommended_gpus": advice.recommended_gpus,
        "worth_it": advice.worth_it,
        "bottleneck": advice.bottleneck,
        "verdict": advice.verdict,
        "waterfall": {
            "gpus": last.gpus,
            "against": "as many GPUs that never wait",
            "efficiency": 1 - sum(bar.share for bar in advice.waterfall),
            "loss": sum(bar.share for bar in advice.waterfall),
            "bars": [asdict(bar) for bar in advice.waterfall],
        },
        "what_if": [asdict(one) for one in advice.what_if],
        "gates": [asdict(gate) for gate in advice.gates],
        "memory": asdict(advice.memory),
        "critical_batch": work.critical_batch if work else None,
        "notes": list(advice.notes),
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "gpus": row.gpus,
        "nodes": row.nodes,
        "step_time_s": row.step_s.value,
        "step_time_low_s": row.step_s.low,
        "step_time_high_s": row.step_s.high,
        "throughput": row.samples_per_s.value,
        "throughput_low": row.samples_per_s.low,
        "throughput_high": row.samples_per_s.high,
        "efficiency": row.efficiency.value,
        "efficiency_low": row.efficiency.low,
        "efficiency_high": row.efficiency.high,
        "effective_efficiency": row.effective_efficiency,
        "global_batch": row.global_batch,
        "steps": row.steps,
        "extra_samples": row.extra_samples,
        **_band("time", row.time_s, "_s"),
        **_band("cost", row.cost, ""),
        "energy_kwh": row.energy_kwh,
        "parts_s": {"alone": row.step.alone_s, **row.step.added_s},
    }


def _band(name: str, band: Band | None, unit: str) -> dict[str, float | None]:
    return {
        f"{name}{unit}": band.value if band else None,
        f"{name}_low{unit}": band.low if band else None,
        f"{name}_high{unit}": band.high if band else None,
    }


def measured_document(measured: Measured, answer: Answer) -> dict[str, Any]:
    """The document of advice from measured throughputs: efficiencies are relative to the first fitted row."""
    first = answer.base_gpus
    return {
        "schema": 1,
        "kind": "advice",
        "source": "measured",
        "relative_to_gpus": first,
        "measured": [
            {
                "gpus": gpus,
                "throughput": value,
                "efficiency": value / gpus / (measured.rows[first] / first),
                "fitted_throughput": fitted.throughput,
                "left_out": gpus == answer.left_out,
                "cost": measured.cost(gpus, value),
            }
            for (gpus, value), fitted in zip(measured.rows.items(), answer.measured, strict=True)
        ],
        "predictions": [_prediction(one) for one in answer.predictions],
        "recommended_gpus": answer.recommended_gpus,
        "worth_it": answer.worth_it,
        "bottleneck": answer.bottleneck,
        "verdict": answer.verdict,
        "what_if": [asdict(one) for one in answer.what_if],
        "notes": list(answer.notes),
    }


def _prediction(one: Prediction) -> dict[str, Any]:
    return {
        "gpus": one.gpus,
        "throughput": one.throughput,
        "efficiency": one.efficiency,
        "efficiency_low": one.efficiency_low,
        "efficiency_high": one.efficiency_high,
        "step_time_s": one.step_time_s,
        "cost": one.cost,
    }

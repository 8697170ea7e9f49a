"""Inputs of reports, made up for tests: values that are easy to work out by hand."""

import copy
import json

NASTY = "<script>alert('\"&')</script> \u00fc\u6f22 \x1b[31m \ud800"
# Four GPUs at 90 % for half the time and 10 % more cost.
ADVICE = {
    "schema": 1,
    "kind": "advice",
    "source": "profile",
    "job": "flowers",
    "profile": {"size": 2, "hosts": [], "device_name": "H200", "steps": 50, "samples_per_s": 190.0},
    "predictions": [
        {
            "gpus": gpus,
            "step_time_s": step,
            "step_time_low_s": 0.9 * step,
            "step_time_high_s": 1.1 * step,
            "throughput": rate,
            "efficiency": efficiency,
            "efficiency_low": efficiency - spread,
            "efficiency_high": efficiency + spread,
            "effective_efficiency": efficiency,
            "global_batch": 64.0 * gpus,
            "time_s": 360_000 / rate,
            "time_low_s": 350_000 / rate,
            "time_high_s": 370_000 / rate,
            "cost": 2.0 * gpus * 100 / rate,
            "cost_low": 1.9 * gpus * 100 / rate,
            "cost_high": 2.1 * gpus * 100 / rate,
        }
        for gpus, step, rate, efficiency, spread in (
            (1, 0.64, 100.0, 1.0, 0.0),
            (2, 0.67, 192.0, 0.96, 0.02),
            (4, 0.71, 360.0, 0.90, 0.05),
            (8, 1.28, 400.0, 0.50, 0.10),
        )
    ],
    "recommended_gpus": 4,
    "worth_it": True,
    "bottleneck": "bandwidth",
    "verdict": "Use 4 GPUs.",
    "waterfall": {
        "gpus": 8,
        "efficiency": 0.5,
        "loss": 0.5,
        "bars": [
            {"cause": "data", "share": 0.1},
            {"cause": "straggler", "share": 0.0},
            {"cause": "bandwidth", "share": 0.4},
        ],
    },
    "what_if": [
        {"change": "fp16 compression", "step_s": 1.0, "samples_per_s": 480.0, "gain": 0.2},
        {"change": "a link 2 times as fast", "step_s": 1.0, "samples_per_s": 500.0, "gain": 0.25},
    ],
    "gates": [{"name": "budget", "limit": 3, "found": 2, "holds": True, "sentence": "the lowest cost is 2"}],
    "memory": {},
    "notes": ["25GbE is assumed"],
}
MEASURED = {
    "schema": 1,
    "kind": "advice",
    "source": "measured",
    "relative_to_gpus": 1,
    "measured": [
        {"gpus": 1, "throughput": 100.0, "efficiency": 1.0},
        {"gpus": 8, "throughput": 760.0, "efficiency": 0.95},
    ],
    "predictions": [
        {
            "gpus": 16,
            "throughput": 1440.0,
            "efficiency": 0.9,
            "efficiency_low": 0.8,
            "efficiency_high": 0.95,
            "step_time_s": 0.3,
            "cost": None,
        }
    ],
    "recommended_gpus": 8,
    "worth_it": False,
    "bottleneck": "unknown",
    "verdict": "Stay.",
    "what_if": [],
    "notes": [],
}


def advice(**changed):
    return copy.deepcopy(ADVICE) | changed


def metric_lines(epochs=3, **extra):
    """Two lines an epoch of ten steps: a step's and the evaluation's."""
    lines = []
    for epoch in range(1, epochs + 1):
        step = 10 * epoch
        lines.append(
            {"step": step, "epoch": epoch, "time_s": 1.0 * epoch, "loss": 1 / epoch, "lr": 0.1, **extra}
        )
        evaluation = {"validation_loss": 2 / epoch, "validation_accuracy": 1 - 0.3 / epoch}
        lines.append({"step": step, "epoch": epoch, "time_s": 1.0 * epoch, **evaluation})
    return lines


def write_run(folder, lines=None, **files):
    """A run directory; ``files`` are documents by the name of their file without its ending."""
    folder.mkdir(exist_ok=True)
    lines = metric_lines() if lines is None else lines
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder

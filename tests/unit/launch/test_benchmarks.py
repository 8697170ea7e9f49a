"""The benchmarks of launching end with code 1 where a figure is above its limit."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks"


def load(name):
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("limit_s", "code"), [(0.0, 1), (600.0, 0)])
def test_plan_is_held_to_its_limit(monkeypatch, capsys, limit_s, code):
    plan = load("plan")
    monkeypatch.setattr(plan, "LIMIT_WALL_S", limit_s)
    # A process that is forked off begins with the memory of this one, which holds all tests.
    monkeypatch.setattr(plan, "LIMIT_PEAK_MB", 1e6)
    monkeypatch.setattr("sys.argv", ["plan.py", "--hosts", "2", "--repeat", "1", "--json"])
    assert plan.main() == code
    told = capsys.readouterr().err
    assert ("s is above the limit of 0 s" in told) is bool(code)


def test_each_figure_of_plan_above_its_limit_is_named():
    rows = [
        {"form": "table", "wall_s": 1.234, "peak_mb": 300.0},
        {"form": "json", "wall_s": 1.0, "peak_mb": 301.0},
    ]
    assert load("plan").missed(rows) == [
        "table: 1.23 s is above the limit of 1 s",
        "json: 301.00 MB is above the limit of 300 MB",
    ]


@pytest.mark.parametrize(("figure", "code"), [(0.301, 1), (0.3, 0)])
def test_launch_is_held_to_its_promise(monkeypatch, capsys, figure, code):
    launch = load("launch")
    times = {"mpirun": 1.0, "hvdtrain run": 1.0 + figure}
    monkeypatch.setattr(launch, "commands", lambda environ: {name: name for name in times})
    monkeypatch.setattr(launch, "seconds", times.get)
    monkeypatch.setattr("sys.argv", ["launch.py", "--rounds", "2"])
    assert launch.main() == code
    assert ("0.301 s more than mpirun, limit 0.3 s" in capsys.readouterr().err) is bool(code)

"""The benchmark of recovery knows a next life by its lines, and is held to its promise."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[3] / "benchmarks" / "recovery.py"


@pytest.fixture(scope="module")
def recovery():
    spec = importlib.util.spec_from_file_location("benchmark_recovery", FILE)
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module


def write(run, *lines):
    text = "".join(json.dumps({"step": step, "time_s": time_s}) + "\n" for step, time_s in lines)
    (run / "metrics.jsonl").write_text(json.dumps({"step": 0, "time_s": 0.0}) + "\n" + text)


def test_the_first_step_of_the_next_life(recovery, tmp_path):
    assert recovery.first_of_next(tmp_path) is None
    write(tmp_path, (1, 0.5), (2, 0.6), (3, 0.7))
    assert recovery.first_of_next(tmp_path) is None
    assert recovery.last_lines(tmp_path)[-1]["step"] == 3
    write(tmp_path, (1, 0.5), (2, 0.6), (3, 0.1), (4, 0.2))
    assert recovery.first_of_next(tmp_path) == 3


def test_figures_and_promise(recovery):
    row = recovery.figures([1.0, 2.0, 3.0, 4.0, 10.0])
    assert row == {"median": 3.0, "quartile_1": 2.0, "quartile_3": 4.0, "most": 10.0}
    assert recovery.missed({recovery.OURS: row}) == ""
    row["most"] = 10.5
    assert recovery.missed({recovery.OURS: row}) == (
        "hvdtrain train: 10.50 s to the last process, limit 10 s"
    )

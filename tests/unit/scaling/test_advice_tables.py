"""The benchmark of published tables: its limits, its sets, and what it prints."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "advice.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("advice_benchmark", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_benchmark_meets_its_limits(benchmark):
    rows = benchmark.predict_all(benchmark.read_tables(benchmark.TABLES))
    assert len(rows) == 32
    assert benchmark.missed(benchmark.summarise(rows)) == []


@pytest.mark.parametrize("facts", ["no batch", "no network", "neither"])
def test_bands_hold_where_facts_are_withheld(benchmark, facts):
    rows = benchmark.predict_all(benchmark.read_tables(benchmark.TABLES), benchmark.WITHHELD[facts])
    told = benchmark.summarise(rows)
    assert told["inside_share"] >= 0.8
    assert told["median_error"] <= 5
    assert told["widest_half_band"] <= 15 + 1e-9


def test_bands_hold_for_tables_that_no_prior_was_chosen_with(benchmark):
    told = benchmark.summarise(benchmark.predict_all(benchmark.read_tables(benchmark.SETS["held-out"])))
    assert told["rows"] == 129
    assert told["inside_share"] >= 0.8
    assert told["median_error"] <= 5
    assert told["mean_error"] < told["law_mean_error"]
    assert told["widest_half_band"] <= 15 + 1e-9


def test_each_table_has_a_source_and_stands_in_one_set(benchmark):
    tables = [(name, table) for name, path in benchmark.SETS.items() for table in benchmark.read_tables(path)]
    assert all(table["source"] and table["fit"] and table["predict"] for _, table in tables)
    held = {table["source"] for name, table in tables if name == "held-out"}
    assert not held & {table["source"] for name, table in tables if name != "held-out"}


def test_the_benchmark_prints_both_and_json(benchmark, capsys, monkeypatch, tmp_path):
    few = tmp_path / "few.json"
    tables = benchmark.read_tables(benchmark.TABLES)[:2]
    few.write_text(json.dumps({"schema": 1, "tables": tables}))
    monkeypatch.setattr(sys, "argv", ["advice.py", str(few)])
    assert benchmark.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("few ") for line in lines) == 4
    monkeypatch.setattr(sys, "argv", ["advice.py", "--json", str(few)])
    assert benchmark.main() == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["summaries"]["few"]) == set(benchmark.WITHHELD)
    assert (document["missed"], len(document["rows"])) == ([], 2)

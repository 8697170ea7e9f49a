"""Predicted against measured scaling, for published tables: ``python benchmarks/advice.py [FILE ...]``.

Each table's rows that are marked ``fit`` go into ``hvdtrain advise --measured``'s model, the others are
predicted. Columns: measured and predicted efficiency in percent, relative to the table's first row; the band;
the error in points; the error of the universal scalability law fitted to the same rows.

Four sets of tables, one after the other:

required   advice_tables.json: the rows that have limits; the exit code is 1 where one is missed
chosen     advice_tuning_tables.json: the priors were chosen with these, beside the required rows, in sight
held-out   advice_more_tables.json: no prior was chosen with these rows
last       advice_last_tables.json: looked up when the model was all but finished; took one assumption away

Then the same with facts withheld: batch per GPU, network, both. FILEs hold other tables of the same form.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from hvdtrain.scaling.laws import efficiency, fit_scalability_law
from hvdtrain.scaling.measured import predict
from hvdtrain.scaling.measured_fit import fit
from hvdtrain.scaling.measured_input import Measured

HERE = Path(__file__).parent
TABLES = HERE / "advice_tables.json"
SETS = {
    "required": TABLES,
    "chosen": HERE / "advice_tuning_tables.json",
    "held-out": HERE / "advice_more_tables.json",
    "last": HERE / "advice_last_tables.json",
}
HELD_OUT = ("held-out", "last")
WITHHELD: dict[str, dict[str, None]] = {
    "all told": {},
    "no batch": {"batch_per_gpu": None},
    "no network": {"network": None},
    "neither": {"batch_per_gpu": None, "network": None},
}
LIMIT_MEDIAN, LIMIT_WORST, LIMIT_INSIDE, LIMIT_HALF_WIDTH = 5.0, 10.0, 0.8, 15.0


@dataclass(frozen=True)
class Row:
    """A predicted row; all but the name and the number of GPUs in percent or points of efficiency."""

    table: str
    gpus: int
    measured: float
    predicted: float
    low: float
    high: float
    error: float
    law_error: float

    @property
    def inside(self) -> bool:
        """Whether the measured efficiency lies in the band."""
        return self.low <= self.measured <= self.high


def read_tables(path: Path) -> list[dict[str, Any]]:
    """The tables of a file."""
    tables: list[dict[str, Any]] = json.loads(path.read_text())["tables"]
    return tables


def predict_table(table: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of a table that were not fitted."""
    given = {int(gpus): float(value) for gpus, value in table["fit"].items()}
    asked = {int(gpus): float(value) for gpus, value in table["predict"].items()}
    measured = Measured(
        rows=dict(sorted(given.items())),
        params=table["params"],
        predict=tuple(sorted(asked)),
        gpus_per_node=table["gpus_per_node"],
        network=table["network"],
        batch_per_gpu=table["batch_per_gpu"],
        accumulate=table.get("accumulate", 1),
    )
    fitted = fit(measured)
    law = fit_scalability_law(list(measured.rows.items()))
    base_gpus, base = next(iter(measured.rows.items()))
    for gpus in measured.predict:
        one = predict(fitted, gpus)
        truth = 100 * efficiency(asked[gpus], gpus, base, base_gpus)
        by_law = 100 * efficiency(law.throughput(gpus), gpus, base, base_gpus)
        told = [100 * value for value in (one.efficiency, one.efficiency_low, one.efficiency_high)]
        middle, low, high = told
        yield Row(table["name"], gpus, truth, middle, low, high, middle - truth, by_law - truth)


def predict_all(tables: Sequence[Mapping[str, Any]], withheld: Mapping[str, None] | None = None) -> list[Row]:
    """The rows of all tables, with facts withheld."""
    return [row for table in tables for row in predict_table({**table, **(withheld or {})})]


def summarise(rows: Sequence[Row]) -> dict[str, float]:
    """The figures that have limits, and the law's beside them."""
    errors, law_errors = [abs(row.error) for row in rows], [abs(row.law_error) for row in rows]
    halves = [(row.high - row.low) / 2 for row in rows]
    return {
        "rows": len(rows),
        "median_error": median(errors),
        "mean_error": sum(errors) / len(rows),
        "worst_error": max(errors),
        "over_10": sum(error > LIMIT_WORST for error in errors),
        "inside_share": sum(row.inside for row in rows) / len(rows),
        "median_half_band": median(halves),
        "widest_half_band": max(halves),
        "law_median_error": median(law_errors),
        "law_mean_error": sum(law_errors) / len(rows),
        "law_worst_error": max(law_errors),
    }


def missed(told: Mapping[str, float]) -> list[str]:
    """The limits that are not met, each as a sentence."""
    tests = [
        (
            told["median_error"] <= LIMIT_MEDIAN,
            f"median error {told['median_error']:.1f} is above {LIMIT_MEDIAN:g} points",
        ),
        (
            told["worst_error"] <= LIMIT_WORST,
            f"worst error {told['worst_error']:.1f} is above {LIMIT_WORST:g} points",
        ),
        (
            told["inside_share"] >= LIMIT_INSIDE,
            f"only {told['inside_share']:.0%} of the rows are inside their band",
        ),
        (
            told["widest_half_band"] <= LIMIT_HALF_WIDTH + 1e-9,
            f"a band is {told['widest_half_band']:.1f} points to each side",
        ),
        (told["mean_error"] < told["law_mean_error"], "the universal scalability law does better"),
    ]
    return [sentence for met, sentence in tests if not met]


def show_rows(rows: Sequence[Row]) -> None:
    """Prints the rows."""
    width = max(len(row.table) for row in rows)
    head = f"{'table':<{width}} {'GPUs':>5} {'measured':>9} {'predicted':>10} {'band':>15}"
    print(f"{head} {'error':>7} {'law error':>10}")
    for row in rows:
        band = f"{row.low:.1f} to {row.high:.1f}"
        mark = "" if row.inside else "  outside its band"
        print(
            f"{row.table:<{width}} {row.gpus:>5} {row.measured:>9.1f} {row.predicted:>10.1f} {band:>15} "
            f"{row.error:>+7.1f} {row.law_error:>+10.1f}{mark}"
        )
    print()


def show_summaries(summaries: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Prints a line for each set and each way of withholding facts."""
    columns = (
        *(("rows", "rows", ".0f"), ("median_error", "median", ".1f"), ("mean_error", "mean", ".1f")),
        *(("worst_error", "worst", ".1f"), ("over_10", "over 10", ".0f"), ("inside_share", "in band", ".0%")),
        *(("median_half_band", "half band", ".1f"), ("widest_half_band", "widest", ".1f")),
        *(("law_median_error", "law median", ".1f"), ("law_mean_error", "law mean", ".1f")),
    )
    print(f"{'set':<10} {'facts':<11}", *(f"{head:>{len(head) + 1}}" for _, head, _ in columns))
    for name, ways in summaries.items():
        for facts, told in ways.items():
            cells = [f"{format(told[key], form):>{len(head) + 1}}" for key, head, form in columns]
            print(f"{name:<10} {facts:<11}", *cells)
    print(
        "errors and bands in points of efficiency; limits of the required rows, all told: "
        f"median {LIMIT_MEDIAN:g}, worst {LIMIT_WORST:g}, {LIMIT_INSIDE:.0%} in band, "
        f"half band {LIMIT_HALF_WIDTH:g}, mean below the law's"
    )


def main() -> int:
    """Predicts and prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="tables; the four sets if not given")
    parser.add_argument("--held-out", action="store_true", help="the two held-out sets alone")
    parser.add_argument(
        "--rows", action="store_true", help="the rows of all sets; else not of the chosen one"
    )
    parser.add_argument("--json", action="store_true", dest="as_json", help="one JSON document on stdout")
    asked = parser.parse_args()
    sets = {path.stem: path for path in asked.files} or SETS
    if asked.held_out and not asked.files:
        sets = {name: SETS[name] for name in HELD_OUT}
    found: dict[str, dict[str, list[Row]]] = {}
    for name, path in sets.items():
        tables = read_tables(path)
        found[name] = {facts: predict_all(tables, withheld) for facts, withheld in WITHHELD.items()}
    summaries = {
        name: {facts: summarise(rows) for facts, rows in ways.items()} for name, ways in found.items()
    }
    first = next(iter(sets))
    sentences = missed(summaries[first]["all told"])
    if asked.as_json:
        rows = [
            {"set": name, **asdict(row), "inside": row.inside}
            for name, ways in found.items()
            for row in ways["all told"]
        ]
        summary = summaries[first]["all told"]
        document = {"rows": rows, "summary": summary, "summaries": summaries, "missed": sentences}
        print(json.dumps({"schema": 1, **document}))
    else:
        for name, ways in found.items():
            if asked.rows or name != "chosen":
                print(f"{name}:")
                show_rows(ways["all told"])
        show_summaries(summaries)
    for sentence in sentences:
        print(f"{first}: {sentence}", file=sys.stderr)
    return 1 if sentences and first not in HELD_OUT else 0


if __name__ == "__main__":
    sys.exit(main())

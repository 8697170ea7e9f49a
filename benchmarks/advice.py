"""Predicted against measured scaling, for published tables: ``python benchmarks/advice.py [--json] [FILE]``.

Each table's rows that are marked ``fit`` go into ``hvdtrain advise --measured``'s model, the others are
predicted. Columns: measured and predicted efficiency in percent, relative to the table's first row; the band;
the error in points; the error of the universal scalability law fitted to the same rows. FILE holds other
tables of the same form as ``benchmarks/advice_tables.json``. The exit code is 1 where a limit is missed, and
each is named on stderr.

The model's priors were chosen with these tables, and others of the kind, in sight: they show that one
mechanism holds for all of them, not what it does on a table that nobody has seen.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from hvdtrain.scaling.laws import efficiency, fit_scalability_law
from hvdtrain.scaling.measured import predict
from hvdtrain.scaling.measured_fit import fit
from hvdtrain.scaling.measured_input import Measured

TABLES = Path(__file__).with_name("advice_tables.json")
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


def predict_table(table: dict[str, Any]) -> Iterator[Row]:
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
        yield Row(table["name"], gpus, truth, *told, told[0] - truth, by_law - truth)


def summarise(rows: list[Row]) -> dict[str, float]:
    """The figures that have limits, and the law's beside them."""
    errors, law_errors = [abs(row.error) for row in rows], [abs(row.law_error) for row in rows]
    return {
        "rows": len(rows),
        "median_error": median(errors),
        "worst_error": max(errors),
        "inside_share": sum(row.inside for row in rows) / len(rows),
        "widest_half_band": max((row.high - row.low) / 2 for row in rows),
        "law_median_error": median(law_errors),
        "law_mean_error": sum(law_errors) / len(rows),
        "law_worst_error": max(law_errors),
        "mean_error": sum(errors) / len(rows),
    }


def missed(told: dict[str, float]) -> list[str]:
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


def show(rows: list[Row], told: dict[str, float]) -> None:
    """Prints the table and its summary."""
    head = f"{'table':<28} {'GPUs':>5} {'measured':>9} {'predicted':>10} {'band':>15}"
    print(f"{head} {'error':>7} {'law error':>10}")
    for row in rows:
        band = f"{row.low:.1f} to {row.high:.1f}"
        mark = "" if row.inside else "  outside its band"
        print(
            f"{row.table:<28} {row.gpus:>5} {row.measured:>9.1f} {row.predicted:>10.1f} {band:>15} "
            f"{row.error:>+7.1f} {row.law_error:>+10.1f}{mark}"
        )
    print(
        f"{told['rows']} rows: median error {told['median_error']:.1f} points (limit {LIMIT_MEDIAN:g}), "
        f"worst {told['worst_error']:.1f} (limit {LIMIT_WORST:g}), "
        f"{told['inside_share']:.0%} inside their band (limit {LIMIT_INSIDE:.0%}), "
        f"widest band {told['widest_half_band']:.1f} to each side (limit {LIMIT_HALF_WIDTH:g})"
    )
    print(
        f"universal scalability law: median error {told['law_median_error']:.1f} points, mean "
        f"{told['law_mean_error']:.1f} (ours {told['mean_error']:.1f}), worst {told['law_worst_error']:.1f}"
    )


def main() -> int:
    """Predicts and prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "file", nargs="?", type=Path, default=TABLES, help="tables, advice_tables.json if not given"
    )
    parser.add_argument("--json", action="store_true", dest="as_json", help="one JSON document on stdout")
    asked = parser.parse_args()
    tables = json.loads(asked.file.read_text())["tables"]
    rows = [row for table in tables for row in predict_table(table)]
    told = summarise(rows)
    if asked.as_json:
        listed = [{**asdict(row), "inside": row.inside} for row in rows]
        print(json.dumps({"schema": 1, "rows": listed, "summary": told, "missed": missed(told)}))
    else:
        show(rows, told)
    for sentence in missed(told):
        print(sentence, file=sys.stderr)
    return 1 if missed(told) else 0


if __name__ == "__main__":
    sys.exit(main())

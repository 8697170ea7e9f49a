"""What ``hvdtrain run --json`` says of a job that failed."""

from __future__ import annotations

from hvdtrain.cli.lives import document
from hvdtrain.launch.outcome import JobOutcome, RankEnd


def test_all_failures_with_ranks_and_codes():
    first = RankEnd(2, "h1", 7, 0.0)
    others = (
        RankEnd(0, "h0", -9, 0.0),
        RankEnd(1, "h1", 1, 0.0, last_words=("Traceback (most recent call last):", "  x", "ValueError: no")),
    )
    told = document(JobOutcome(1, 4, first, frozenset({3}), other_failures=others), "mpirun", "text")
    assert (told["failed_rank"], told["failed_host"], told["failed_code"], told["done"]) == (2, "h1", 7, [3])
    assert told["other_failures"] == [
        {"rank": 0, "host": "h0", "code": -9, "error": ""},
        {"rank": 1, "host": "h1", "code": 1, "error": "ValueError: no"},
    ]

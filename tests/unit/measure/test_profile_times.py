"""Waiting and transfer, and who is slowest: each value worked out by hand."""

import numpy as np
import pytest

from hvdtrain.measure.profile_slowest import slowest
from hvdtrain.measure.profile_times import rank_times, step_times, table_of, waits
from hvdtrain.measure.profile_trace import trace_document
from hvdtrain.scaling.profile import RankTimes


def row(load=0.0, forward=1.0, backward=2.0, reduction=1.0, optimizer=0.5, other=0.25, ready=None):
    return [load, forward, backward, reduction, optimizer, other, load + 4.0 if ready is None else ready]


def test_others_wait_for_the_last_rank():
    # Rank 1 loads 2 s more: rank 0's reduction takes that longer, and 1 s is the transfer.
    table = table_of([[row(reduction=3.0)], [row(load=2.0)]])
    assert waits(table).tolist() == [[2.0, 0.0]]
    first, second = rank_times(table, ("a", "b"))
    assert (first.wait_s, first.exposed_s, first.load_s) == (2.0, 1.0, 0.0)
    assert (second.wait_s, second.exposed_s, second.load_s) == (0.0, 1.0, 2.0)
    assert first.step_s == second.step_s == 6.75


def test_a_rank_waits_at_most_as_long_as_its_reduction_takes():
    table = table_of([[row(reduction=0.5, ready=1.0)], [row(ready=9.0)]])
    assert waits(table).tolist() == [[0.5, 0.0]]


def test_waits_change_sides_from_step_to_step():
    """Means alone would show no waiting here."""
    table = table_of([[row(reduction=2.0), row(load=1.0)], [row(load=1.0), row(reduction=2.0)]])
    assert [one.wait_s for one in rank_times(table, ("a", "b"))] == [0.5, 0.5]


def test_parts_sum_exactly_and_the_spread_is_that_of_the_work():
    rng = np.random.default_rng(0)
    table = rng.random((40, 3, 7))
    for number, one in enumerate(rank_times(table, ("a", "a", "b"))):
        parts = (one.load_s, one.forward_s, one.backward_s, one.exposed_s, one.optimizer_s, one.wait_s)
        assert sum((*parts, one.other_s)) == one.step_s
        assert one.step_s == pytest.approx(table[:, number, :6].sum(axis=1).mean())
        work = table[:, number, [0, 1, 2, 4]].sum(axis=1)
        assert one.compute_std_s == pytest.approx(work.std())


def test_step_times_are_of_the_slowest_rank_of_each_step():
    table = table_of([[row(load=1.0), row(load=0.0)], [row(load=0.0), row(load=3.0)]])
    times = step_times(table)
    assert (times.min, times.max, times.mean, times.median) == (5.75, 7.75, 6.75, 6.75)


def test_ranks_that_kept_unequal_numbers_of_steps_are_aligned_at_the_end():
    table = table_of([[row(load=9.0), row(load=1.0)], [row(load=2.0)]])
    assert table[:, :, 0].tolist() == [[1.0, 2.0]]


def times(rank, **changed):
    parts = {"load_s": 1.0, "forward_s": 2.0, "backward_s": 4.0, "optimizer_s": 1.0, **changed}
    rest = {"exposed_s": 0.0, "wait_s": 0.0, "other_s": 0.0}
    return RankTimes(rank, f"host{rank}", **parts, **rest, step_s=sum(parts.values()), compute_std_s=0.0)


def test_the_slowest_rank_and_where_it_is_slow():
    found = slowest([times(0), times(1, load_s=3.0), times(2)])
    assert (found.rank, found.host, found.excess, found.part) == (1, "host1", 0.25, "load")
    alone = slowest([times(0)])
    assert (alone.rank, alone.excess, alone.part) == (0, 0.0, "backward")


def test_a_trace_splits_the_reduction():
    table = table_of([[row(reduction=3.0)], [row(load=2.0)]])
    spans = [
        [[("load", 0.0, 1.0), ("reduction", 1.0, 4.0), ("optimizer", 4.0, 4.5)]],
        [[("load", 0.0, 3.0), ("reduction", 3.0, 4.0), ("optimizer", 4.0, 4.5)]],
    ]
    events = trace_document(spans, table, ("a", "b"))["traceEvents"]
    names = [event["args"]["name"] for event in events if event["ph"] == "M"]
    assert names == ["rank 0 on a", "rank 1 on b"]
    first = [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == 0]
    assert first == [("load", 0, 1e6), ("wait", 1e6, 2e6), ("exposed", 3e6, 1e6), ("optimizer", 4e6, 5e5)]
    second = [e["name"] for e in events if e["ph"] == "X" and e["pid"] == 1]
    assert second == ["load", "exposed", "optimizer"]

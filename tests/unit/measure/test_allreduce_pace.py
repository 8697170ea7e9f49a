"""How repetitions are shared out over the time that there is."""

import pytest

from hvdtrain.measure.allreduce_pace import Pace


def make_pace(limit_s=60.0, num_series=2, repeat=200, may_stop=True):
    pace = Pace(limit_s, num_series, repeat, may_stop)
    pace.begin_series()
    return pace


def test_small_sizes_get_all_repetitions_and_large_ones_fewer():
    pace = make_pace()  # 30 s for this series
    assert pace.repetitions(0.001, 0.0, 10) == 200  # 3 s for a size
    assert pace.repetitions(0.1, 0.0, 10) == 30
    assert pace.repetitions(2.0, 0.0, 10) == 3  # a median needs some
    assert pace.repetitions(0.1, 30.0, 1) == 3
    assert pace.repetitions(0.0, 0.0, 1) == 200


def test_repeat_is_a_limit_also_below_three():
    pace = make_pace(repeat=1)
    assert pace.repetitions(0.001, 0.0, 1) == pace.repetitions(100.0, 0.0, 1) == 1


def test_a_size_that_would_take_too_long_is_left_out_of_the_usual_range_only():
    # Three to warm up and three to time: 6 x 5 s just fit into 30 s.
    assert make_pace().has_time(5.0, 0.0)
    assert not make_pace().has_time(5.1, 0.0)
    assert not make_pace().has_time(5.0, 0.1)
    assert make_pace(may_stop=False).has_time(1000.0, 1000.0)


@pytest.mark.parametrize(("spent_s", "affordable"), [(10.0, 50), (59.0, 3), (70.0, 3)])
def test_what_a_series_leaves_the_next_ones_get(spent_s, affordable):
    pace = make_pace(repeat=1000)
    pace.end_series(spent_s)
    pace.begin_series()
    assert pace.repetitions(1.0, 0.0, 1) == affordable

"""What rank 0 makes of what the ranks tell while a training goes on."""

import numpy as np
import pytest

from hvdtrain.measure.noise_scale import NoiseRecord, Norms
from hvdtrain.measure.profile_pace import Told
from hvdtrain.measure.profile_run import Outlet, RunProfile

PARTS_SHOWN = ("load", "forward", "backward", "exposed", "optimizer", "wait", "other")


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def heard():
    return {"tables": [], "lines": [], "figures": []}


@pytest.fixture
def book(clock, heard):
    outlet = Outlet(
        lambda table, noise: heard["tables"].append((len(table), noise)),
        heard["lines"].append,
        lambda name, value: heard["figures"].append((name, value)),
    )
    return RunProfile(("a", "a", "b"), NoiseRecord(1, 2), outlet, clock)


def told(slow=None, excess=1.0, steps=20, norms=()):
    """Steps of three ranks of 4 s of work, one of which loads ``excess`` longer."""
    table = np.tile([1.0, 1.0, 1.0, 0.5, 1.0, 0.1, 5.0], (steps, 3, 1))
    if slow is not None:
        table[:, slow, 0] += excess
    return Told(table, list(norms))


def hear(book, clock, seconds, *args, **kwargs):
    clock.now += seconds
    book.hear(told(*args, **kwargs))


def test_a_rank_that_stays_slow_is_named_with_its_host(book, clock, heard):
    for _ in range(2):
        hear(book, clock, 6.0, slow=2)
    assert heard["lines"] == []
    hear(book, clock, 6.0, slow=2)
    (line,) = heard["lines"]
    assert line.startswith(
        "rank 2 on b stays slower than the others: its own work of a step takes 25 % longer"
    )
    assert "most of it in load" in line
    for _ in range(50):
        hear(book, clock, 6.0, slow=2)
    assert len(heard["lines"]) == 1  # once in ten minutes
    for _ in range(60):
        hear(book, clock, 6.0, slow=2)
    assert len(heard["lines"]) == 2


@pytest.mark.parametrize("ranks", [(0, 1, 2) * 10, (2, 2, None) * 10])
def test_ranks_that_are_slow_in_turn_are_not(book, clock, heard, ranks):
    for rank in ranks:
        hear(book, clock, 6.0, slow=rank)
    assert heard["lines"] == []


def test_less_than_a_tenth_is_not_slow(book, clock, heard):
    for _ in range(20):
        hear(book, clock, 6.0, slow=1, excess=0.3)
    assert heard["lines"] == []


def test_one_disturbed_step_is_not_either(book, clock, heard):
    for _ in range(20):
        one = told()
        one.table[3, 1, 0] = 500.0
        clock.now += 6.0
        book.hear(one)
    assert heard["lines"] == []


def test_the_file_is_written_once_a_minute_and_at_the_end(book, clock, heard):
    for _ in range(11):
        hear(book, clock, 11.0)
    assert [steps for steps, _ in heard["tables"]] == [120]
    book.write()
    assert heard["tables"][-1] == (220, None)


def test_nothing_is_written_of_one_step(book, clock, heard):
    book.write()
    hear(book, clock, 100.0, steps=1)
    assert heard["tables"] == []


def test_the_noise_scale_is_shown_and_a_batch_past_it_told_once(book, clock, heard):
    rng = np.random.default_rng(0)
    for _ in range(30):
        # |G|^2 near 2 and S near 0.02: the noise scale is 0.01, the batch 2.
        big = 2.0 + 0.001 * rng.standard_normal()
        hear(book, clock, 1.0, norms=[Norms(big + 0.01, big)])
    value = dict(heard["figures"])["noise_scale"]
    assert value == pytest.approx(0.01, rel=0.05)
    assert [line.partition(":")[0] for line in heard["lines"]] == [
        "your batch is past what this problem can use"
    ]


def test_the_parts_of_a_step_are_shown_as_means_over_the_ranks(book, clock, heard):
    hear(book, clock, 1.0, slow=2, excess=3.0)
    shown = dict(heard["figures"])
    assert shown["load_s"] == pytest.approx(2.0)  # 1, 1 and 4
    assert set(shown) == {f"{part}_s" for part in PARTS_SHOWN}

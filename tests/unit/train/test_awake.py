"""A suspended process is not a stalled one."""

import pytest

from hvdtrain.train.awake import Awake


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def looks(awake, clock, thing, since_s, seconds, every_s=0.5):
    """The last of the looks that a watch takes in some seconds."""
    for _ in range(round(seconds / every_s)):
        clock.now += every_s
        told = awake.look(thing, since_s)
    return told


def test_time_is_counted_while_it_runs(clock):
    assert looks(Awake(clock, 0.5), clock, "a", 100.0, 20.0) == pytest.approx(20.0)


def test_a_suspension_is_left_out(clock):
    awake = Awake(clock, 0.5)
    looks(awake, clock, "a", 100.0, 10.0)
    clock.now += 3600.0
    assert awake.look("a", 100.0) == pytest.approx(12.0)  # one late look counts as four
    assert looks(awake, clock, "a", 100.0, 10.0) == pytest.approx(22.0)


def test_one_before_the_first_look_too(clock):
    awake = Awake(clock, 0.5)
    looks(awake, clock, "a", 100.0, 1.0)
    began_s = clock.now
    clock.now += 3600.0
    assert awake.look("b", began_s) == pytest.approx(2.0)


def test_an_earlier_one_does_not_help_what_came_later(clock):
    awake = Awake(clock, 0.5)
    clock.now += 3600.0
    awake.look("a", 100.0)
    assert looks(awake, clock, "b", clock.now, 30.0) == pytest.approx(30.0)

"""The sections of a step, on a clock whose readings are written down here."""

import pytest

from hvdtrain.measure.step_clock import COLUMNS, PARTS, StepClock


class Script:
    """A timer that reads what it is set to, in seconds."""

    def __init__(self):
        self.at = 0.0

    def now(self):
        return self.at

    def between(self, begin, end):
        return end - begin


@pytest.fixture
def timer():
    return Script()


@pytest.fixture
def clock(timer):
    return StepClock(timer, 10)


def play(clock, timer, *events):
    """Each event is a moment and what happens then: a section, ``ready`` or ``tick``."""
    for at, event in events:
        timer.at = at
        if event == "ready":
            clock.note_ready()
        elif event == "tick":
            clock.tick()
        else:
            clock.enter(event)


def named(row):
    return dict(zip(COLUMNS, row, strict=True))


def step(clock, timer, start):
    """2 s load, 3 forward, 5 backward, 7 reduction, 11 optimizer, 13 other."""
    events = [(2, "forward"), (5, "backward"), (10, "reduction"), (17, "optimizer"), (28, "agreement")]
    play(clock, timer, *((start + at, name) for at, name in (*events, (41, "tick"))))


def test_parts_sum_to_the_step(clock, timer):
    play(clock, timer, (0, "loading"))
    step(clock, timer, 0)
    assert clock.rows() == []  # nothing is known of a reduction before it
    step(clock, timer, 41)
    (row,) = clock.rows()
    told = named(row)
    assert [told[part] for part in PARTS] == [2, 3, 5, 7, 11, 13]
    assert sum(told[part] for part in PARTS) == 41
    # From 17, when the last reduction was over, to 51.
    assert told["ready"] == 34


def test_a_reduction_inside_of_backward_counts_from_the_last_gradient(clock, timer):
    inside = [
        (1, "forward"),
        (2, "reduction"),
        (6, "ready"),
        (9, "reduction"),
        (10, "optimizer"),
        (12, "tick"),
    ]
    play(clock, timer, (0, "loading"), *inside, *((12 + at, name) for at, name in inside))
    told = named(clock.rows()[0])
    assert (told["forward"], told["backward"], told["reduction"], told["optimizer"]) == (1, 4, 4, 2)
    assert told["ready"] == 18 - 10


def test_passes_of_a_step_add_up(clock, timer):
    passes = [(1, "forward"), (2, "backward"), (4, "loading"), (5, "forward"), (7, "backward")]
    end = [(8, "reduction"), (9, "optimizer"), (10, "tick")]
    play(clock, timer, (0, "loading"), *passes, *end, *((10 + at, name) for at, name in (*passes, *end)))
    told = named(clock.rows()[0])
    assert [told[part] for part in PARTS] == [2, 3, 3, 1, 1, 0]


def test_evaluations_and_what_is_between_epochs_are_no_steps(clock, timer):
    play(clock, timer, (0, "loading"))
    step(clock, timer, 0)
    play(clock, timer, (50, "agreement"), (51, "tick"), (52, "evaluation"), (60, "tick"), (100, "loading"))
    step(clock, timer, 100)
    (row,) = clock.rows()
    told = named(row)
    assert [told[part] for part in PARTS] == [2, 3, 5, 7, 11, 13]
    # Another rank may have come here at another moment: the wait is counted from the reduction all the same.
    assert told["ready"] == 110 - 17


def test_a_step_that_is_not_kept_is_the_next_ones_past(clock, timer):
    play(clock, timer, (0, "loading"))
    step(clock, timer, 0)
    play(clock, timer, (42, "forward"), (43, "backward"), (44, "reduction"), (45, "optimizer"))
    timer.at = 46
    assert clock.tick(is_kept=False)
    assert len(clock) == 0
    step(clock, timer, 46)
    assert named(clock.rows()[0])["ready"] == 56 - 45


def test_a_step_that_was_left_out_ends_its_reduction_where_the_next_section_begins(clock, timer):
    play(clock, timer, (0, "loading"))
    step(clock, timer, 0)
    play(clock, timer, (42, "forward"), (43, "backward"), (44, "reduction"), (50, "agreement"), (51, "tick"))
    told = named(clock.rows()[0])
    assert (told["reduction"], told["optimizer"], told["other"]) == (6, 0, 1)


def test_spans_count_from_the_end_of_the_reduction_before(clock, timer):
    play(clock, timer, (0, "loading"))
    step(clock, timer, 0)
    step(clock, timer, 41)
    (spans,) = clock.spans()
    assert spans[0] == ("load", 24, 26)
    assert spans[-1] == ("other", 52, 65)

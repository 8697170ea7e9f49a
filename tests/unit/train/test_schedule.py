"""Learning rates worked out by hand."""

import math

import pytest

from hvdtrain.config import ScheduleConfig
from hvdtrain.train.schedule import learning_rate


def rates(steps, **options):
    schedule = ScheduleConfig(**options)
    return [learning_rate(schedule, 1.0, step, steps_per_epoch=4, total_steps=12) for step in steps]


def test_warm_up_is_linear_and_its_first_step_moves():
    assert rates(range(5), warmup_epochs=1) == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_cosine_after_warm_up():
    # 8 steps remain after the warm-up of 4: half of them done is half of the peak.
    assert rates([4, 8], name="cosine", warmup_epochs=1) == pytest.approx([1.0, 0.5])
    assert rates([11], name="cosine", warmup_epochs=1) == pytest.approx([(1 + math.cos(math.pi * 7 / 8)) / 2])


def test_final_fraction_is_the_floor():
    assert rates([12], name="cosine", final_fraction=0.1) == pytest.approx([0.1])
    assert rates([6], name="polynomial", power=2, final_fraction=0.2) == pytest.approx([0.2 + 0.8 * 0.25])


def test_steps_drop_by_their_factor():
    assert rates([0, 3, 4, 8], name="step", step_epochs=1, step_factor=0.1) == pytest.approx(
        [1, 1, 0.1, 0.01]
    )

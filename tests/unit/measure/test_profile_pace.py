"""What the ranks make of what they told each other: the same on all of them."""

import numpy as np
import pytest
import torch

from hvdtrain.measure.noise_scale import Norms
from hvdtrain.measure.profile_pace import Pace, rows_for, steps_between
from hvdtrain.measure.profile_recorder import ProfileRecorder, Trained


def table(step_s, steps=20, ranks=4):
    """Steps whose six parts share ``step_s``; the seventh column is none of them."""
    times = np.full((steps, ranks, 7), step_s / 6)
    times[..., 6] = 1000.0
    return times


@pytest.mark.parametrize(("step_s", "steps"), [(1e-4, 1000), (0.01, 200), (0.05, 40), (3.0, 20), (0.0, 1000)])
def test_about_two_seconds_between_two_sums(step_s, steps):
    assert steps_between(table(step_s)) == steps


def test_the_next_sum_begins_after_the_same_step_in_whatever_order_a_processor_adds():
    """Just at the border of two numbers of steps, where a last bit decides."""
    rng = np.random.default_rng(0)
    flipped = 0
    for _ in range(200):
        times = rng.random((20, 4, 7))
        total = times[..., :6].sum() / 80
        times[..., :6] *= 2.0 / 40.5 / total  # 2 s / step = 40.5 steps
        orders = [times[rng.permutation(20)][:, rng.permutation(4)] for _ in range(8)]
        assert len({steps_between(one) for one in orders}) == 1
        flipped += len({round(2.0 / one[..., :6].sum(axis=2).mean()) for one in orders}) > 1
    assert flipped  # the plain sum of these very numbers would part the ranks


class Alone:
    """The sum of ranks that all told the same; it has come when it is asked for."""

    def __init__(self, size):
        self.rank, self.size = 0, size

    def start_sum(self, values, _name):
        return lambda: values[:1].repeat(self.size, 1)


@pytest.mark.parametrize("taken", [(0, 0.0, 0.0), (15, 4.0, 3.0)])
def test_the_norms_of_all_sampled_steps_are_one_report(taken):
    recorder = ProfileRecorder(Trained([], torch.device("cpu"), 3), rows_for(3), 50)
    recorder.norms.take = lambda: taken
    heard = []
    Pace(Alone(3), recorder, heard.append).finish()
    (told,) = heard
    assert told.norms == ([Norms(4.0, 3.0, 15)] if taken[0] else [])

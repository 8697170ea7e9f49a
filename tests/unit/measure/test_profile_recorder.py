"""Which steps are sampled, and what is left on the model between them."""

import pytest
import torch
from torch import nn

from hvdtrain.measure.profile_recorder import ProfileRecorder, Trained


class Steps:
    """Takes steps as the trainer does."""

    def __init__(self, every, size=2, **trained):
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2)
        parameters = list(self.model.parameters())
        self.recorder = ProfileRecorder(Trained(parameters, torch.device("cpu"), size, **trained), 100, every)
        self.recorder.norms.batch = 8.0
        self.recorder.enter("loading")

    def take(self, is_left_out=False):
        """A step; whether hooks stood during its backward pass."""
        recorder = self.recorder
        recorder.enter("forward")
        loss = self.model(torch.ones(4, 3)).sum()
        recorder.weigh(4.0, 8.0)
        recorder.enter("backward")
        stood = self.has_hooks()
        loss.backward()
        recorder.enter("reduction")
        if not is_left_out:
            recorder.watch("reduced")
            recorder.watch("clipped")
        self.model.zero_grad()
        recorder.enter("agreement")
        recorder.tick(0)
        return stood

    def has_hooks(self):
        return any(parameter._post_accumulate_grad_hooks for parameter in self.model.parameters())


def test_one_of_some_steps_is_sampled_and_left_out_of_the_times():
    steps = Steps(every=5)
    sampled = [number for number in range(1, 24) if steps.take()]
    assert sampled == [2, 7, 12, 17, 22]
    assert not steps.has_hooks()
    # Steps 2 and 22 looked at when gradients are ready; the first step has no reduction before it.
    assert steps.recorder.norms.take()[0] == 3
    assert len(steps.recorder.clock) == 23 - 5 - 1
    assert len(steps.recorder.ready.gradients().ready) == 2


def test_one_rank_alone_samples_no_norms_and_keeps_the_times_of_those_steps():
    steps = Steps(every=5, size=1)
    steps.recorder.norms.batch = 4.0
    assert [number for number in range(1, 24) if steps.take()] == [2, 22]
    assert len(steps.recorder.clock) == 23 - 2 - 1


def test_a_sampled_step_that_is_left_out_counts_for_nothing():
    steps = Steps(every=5)
    for number in range(1, 8):
        steps.take(is_left_out=number == 7)
    assert not steps.has_hooks()
    assert steps.recorder.norms.take()[0] == 0
    for _ in range(5):
        steps.take()
    assert steps.recorder.norms.take()[0] == 1


def test_nothing_is_sampled_where_no_gradients_are_reduced():
    steps = Steps(every=5, has_gradients=False)
    assert not any(steps.take() for _ in range(12))


@pytest.mark.parametrize("reduces_inside", [True, False])
def test_one_hook_stays_where_the_reduction_is_inside_of_backward(reduces_inside):
    steps = Steps(every=50, reduces_inside=reduces_inside)
    for _ in range(3):
        steps.take()
    assert steps.has_hooks() is reduces_inside
    steps.recorder.close()
    assert not steps.has_hooks()

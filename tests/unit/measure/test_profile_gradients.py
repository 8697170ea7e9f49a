"""What the hooks see of a backward pass."""

import pytest
import torch
from torch import nn

from hvdtrain.measure.profile_gradients import NormProbe, ReadyProbe
from hvdtrain.measure.step_clock import HostTimer


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def backward(model, factor=1.0):
    (model(torch.ones(3, 4)).sum() * factor).backward()


def has_hooks(model):
    return any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())


def test_gradients_in_the_order_in_which_they_are_ready(model):
    probe = ReadyProbe(list(model.parameters()), HostTimer())
    probe.begin()
    backward(model)
    probe.end()
    assert not has_hooks(model)
    found = probe.gradients()
    assert (found.num_tensors, found.num_parameters, found.bytes) == (4, 58, 232)
    # The last layer's come first: its 18 parameters, then the first layer's 40.
    assert sum(one.bytes for one in found.ready[:2]) == 72
    assert [one.ready_s for one in found.ready] == sorted(one.ready_s for one in found.ready)
    assert probe.last is not None
    assert probe.last.shape in ((8, 4), (8,))


def test_a_parameter_without_a_gradient_is_reduced_and_never_ready(model):
    unused = nn.Parameter(torch.zeros(5))
    probe = ReadyProbe([*model.parameters(), unused], HostTimer())
    probe.begin()
    backward(model)
    probe.end()
    assert (probe.gradients().num_tensors, len(probe.gradients().ready)) == (5, 4)


def test_steps_of_long_ago_are_forgotten(model):
    class StepNumber:
        now_at = 0

        def now(self):
            return self.now_at

        def between(self, begin, _end):
            return float(begin)

    timer = StepNumber()
    probe = ReadyProbe(list(model.parameters()), timer)
    for timer.now_at in range(1, 41):
        probe.begin()
        backward(model)
        probe.end()
    assert {one.ready_s for one in probe.gradients().ready} == {30.5}  # the mean of 21 to 40


def test_norms_of_the_gradients_as_they_were_before_the_reduction(model):
    parameters = list(model.parameters())
    probe = NormProbe(parameters, 2)
    probe.batch = 6.0
    probe.weigh(3.0, 6.0)
    probe.begin()
    backward(model)
    own = sum(float(value.grad.square().sum()) for value in parameters)
    for value in parameters:
        value.grad.mul_(0.5)  # what a reduction does in place
    probe.end()
    count, small, big = probe.take()
    assert count == 1
    assert small == pytest.approx(own)
    assert big == pytest.approx(own / 4)
    assert probe.take() == (0, 0.0, 0.0)
    assert not has_hooks(model)


def test_the_last_pass_of_a_step_holds_all_of_it(model):
    probe = NormProbe(list(model.parameters()), 2)
    probe.batch = 12.0
    for _ in range(2):
        probe.weigh(3.0, 12.0)
        probe.begin()
        backward(model, 0.5)
    probe.end(loss_scale=4.0)
    whole = sum(float(value.grad.square().sum()) for value in model.parameters())
    count, small, big = probe.take()
    assert (count, small) == (1, pytest.approx(whole / 16))
    assert big == pytest.approx(whole)


@pytest.mark.parametrize(("weight", "total"), [(2.0, 6.0), (3.0, None), (1.0, 2.0)])
def test_a_step_of_unequal_or_unknown_parts_or_of_another_batch_is_left_out(model, weight, total):
    probe = NormProbe(list(model.parameters()), 2)
    probe.batch = 6.0
    probe.weigh(weight, total)
    probe.begin()
    backward(model)
    probe.end()
    assert probe.take() == (0, 0.0, 0.0)


@pytest.mark.parametrize("is_used", [True, False])
def test_a_step_with_a_sparse_gradient_is_left_out_also_where_this_rank_does_not_use_it(model, is_used):
    table = nn.Embedding(5, 4, sparse=True)
    probe = NormProbe([*model.parameters(), table.weight], 2)
    probe.batch = 6.0
    probe.weigh(3.0, 6.0)
    probe.begin()
    backward(model)
    if is_used:
        table(torch.tensor([1, 2])).sum().backward()
    else:  # what an engine puts in place where another rank uses it
        table.weight.grad = torch.sparse_coo_tensor(size=(5, 4), check_invariants=False)
    probe.end()
    assert probe.take() == (0, 0.0, 0.0)
    assert not has_hooks(model)
    table.weight.grad = None
    probe.weigh(3.0, 6.0)
    probe.begin()
    backward(model)
    probe.end()
    assert probe.take()[0] == 1


def test_a_step_that_was_left_out_leaves_nothing_behind(model):
    probe = NormProbe(list(model.parameters()), 2)
    probe.batch = 6.0
    probe.weigh(3.0, 6.0)
    probe.begin()
    backward(model)
    probe.cancel()
    assert not has_hooks(model)
    probe.weigh(3.0, 6.0)
    probe.begin()
    backward(model)
    probe.end()
    assert probe.take()[0] == 1

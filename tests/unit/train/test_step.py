"""Steps that are left out one after the other end the run, and say why."""

import pytest
import torch
from torch import nn

from hvdtrain.backends.single import SingleBackend
from hvdtrain.errors import AgreedError
from hvdtrain.topology.environ import World
from hvdtrain.train.step import Share, Stepper, StepRules


def take_steps(weight, factor):
    backend, net = SingleBackend(World(), torch.device("cpu")), nn.Linear(2, 1)
    replica = backend.distribute(net, torch.optim.SGD(net.parameters(), lr=0.1))
    stepper = Stepper(backend, replica, StepRules(on_nan="skip"))
    share = Share(weight, None)
    for _ in range(100):
        stepper.begin(share)
        stepper.backward(net(torch.ones(1, 2)).mean() * factor, share)
        stepper.end()


@pytest.mark.parametrize(
    ("weight", "factor", "told"),
    [
        (0.0, 1.0, "no rank has a sample; look at the weights that run.step is given, or at the data"),
        (1.0, float("nan"), "the loss is no finite number on rank 0; lower the learning rate, or look at"),
    ],
)
def test_a_hundred_steps_that_were_left_out(weight, factor, told):
    with pytest.raises(AgreedError, match="100 steps in a row were left out, up to step 100") as raised:
        take_steps(weight, factor)
    assert told in str(raised.value)

"""LARS and LAMB on real ranks against one process; the engine's name is the argument."""

import copy
import os
import sys

import torch
from torch import nn

from hvdtrain.backends.base import Reduction
from hvdtrain.backends.start import start_backend
from hvdtrain.topology.environ import find_world
from hvdtrain.train.large_batch import Lamb, Lars
from hvdtrain.train.step import Share, Stepper, StepRules

backend = start_backend(sys.argv[1], find_world(os.environ))
rank, size = backend.rank, backend.size
KINDS = {
    "lars": lambda p: Lars(p, lr=2.0, momentum=0.9, weight_decay=0.1, trust_coefficient=0.02),
    "lamb": lambda p: Lamb(p, lr=0.05, weight_decay=0.1),
}
NUM_SAMPLES = 30

for name, make in KINDS.items():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 3)).double()
    reference = copy.deepcopy(model)
    start = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = make(reference.parameters())
    prefix = f"{name}."
    replica = backend.distribute(model, make(model.parameters()), Reduction(prefix=prefix))
    stepper = Stepper(backend, replica, StepRules(), prefix)
    for step in range(4):
        inputs = torch.randn(
            NUM_SAMPLES, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(step)
        )
        optimizer.zero_grad()
        reference(inputs).square().mean().backward()
        optimizer.step()
        mine = inputs[rank::size]
        share = Share(len(mine), NUM_SAMPLES)
        stepper.begin(share)
        stepper.backward(replica.model(mine).square().mean(), share)
        stepper.end()
    for old, found, wanted in zip(start, replica.module.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-12), (name, found - wanted)
        assert not torch.allclose(found, old, rtol=1e-3)
    # The engine's optimizer is still ours, options and all, and its state can be saved.
    own, theirs = optimizer.state_dict(), replica.optimizer.state_dict()
    assert own["param_groups"] == theirs["param_groups"]
    assert own["state"].keys() == theirs["state"].keys()
    assert all(own["state"][key].keys() == theirs["state"][key].keys() for key in own["state"])
backend.close()
print(f"rank {rank} of {size} ok", flush=True)

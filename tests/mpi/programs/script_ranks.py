"""What the checks of the script API share: this rank's run, a process alone, a model, and a comparison.

Started by ``script_training.py BACKEND``. In double precision, so that only real differences show: a check
trains with ``run``, whose ranks share the batches, and with ``alone``, which takes them whole.
"""

import logging
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import hvdtrain
from hvdtrain.backends.single import SingleBackend
from hvdtrain.topology.environ import World
from hvdtrain.train.script import Run, Settings
from hvdtrain.train.waiting import Waiting

PER_RANK = 4
DIGITS = load_digits()
IMAGES = torch.tensor(DIGITS.images, dtype=torch.float64).flatten(1) / 16
LABELS = torch.tensor(DIGITS.target)
criterion = nn.CrossEntropyLoss()
run = hvdtrain.start(backend=sys.argv[1])
SIZE = run.size


def another(**settings):
    """A run of other settings on the same ranks."""
    return Run(run._engine, run._waiting, run.logger, Settings(**settings), lambda _: None)


def alone(**settings):
    engine, quiet = SingleBackend(World(), torch.device("cpu")), logging.getLogger("alone")
    waiting = Waiting(60, 0, 1, None)
    return Run(engine, waiting, quiet, Settings(**settings), lambda _: None)


def digits(count):
    return TensorDataset(IMAGES[:count], LABELS[:count])


def network(*layers):
    torch.manual_seed(1)
    layers = layers or (nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
    return nn.Sequential(*layers).double()


def sgd(model, lr=0.2):
    return torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=lr, momentum=0.9)


def equal(found, wanted):
    for name, value in wanted.state_dict().items():
        there = found.state_dict()[name]
        assert torch.allclose(there, value, rtol=1e-9, atol=1e-11), (name, (there - value).abs().max())
    checksums = run.gather(sum(float(value.double().sum()) for value in found.state_dict().values()))
    assert len(set(checksums)) == 1, checksums

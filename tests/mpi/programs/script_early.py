"""The last rank ends before the others do: called as ``script_early.py BACKEND WAY [FOLDER]``.

With a folder the run saves there. What the others call tells what they got, which must be nothing.
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hvdtrain

backend, way, *folder = sys.argv[1:]
samples = TensorDataset(torch.randn(8, 4), torch.arange(8) % 3)


def gather_last():
    return run.gather("mine")


def gather():
    return run.gather("mine"), run.sum(1.0)


def alone():
    with run.alone():
        pass
    return run.gather("mine")


def own_loader():
    return list(run.progress(DataLoader(samples, 4)))


def checkpoint():
    run.checkpoint()
    return "saved"


def nothing():
    return "nothing"


with hvdtrain.start(backend=backend) as run:
    net = nn.Linear(4, 3)
    run.distribute(net, torch.optim.SGD(net.parameters(), lr=0.1))
    if folder:
        run.resume(folder[0])
    if run.rank == run.size - 1 and way != "nothing":
        sys.exit(0)
    sys.stdout.write(f"got {globals()[way]()}\n")

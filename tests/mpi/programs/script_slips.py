"""What users forget when they change a loop: called as ``script_slips.py BACKEND SLIP``."""

import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import hvdtrain

backend, slip = sys.argv[1:]
torch.manual_seed(0)
net = nn.Linear(4, 3)
criterion = nn.CrossEntropyLoss()
samples = TensorDataset(torch.randn(48, 4), torch.arange(48) % 3)

with hvdtrain.start(backend=backend) as run:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model, own = run.distribute(net, optimizer, on_nan="skip")
    if slip == "distributed_again":
        run.distribute(net, optimizer)
    loader = run.loader(samples, batch_size=4)
    for _ in run.epochs(1):
        for number, (inputs, targets) in enumerate(run.progress(loader)):
            if slip == "left_early" and number == 2 and run.rank == run.size - 1:
                sys.exit(0)
            loss = criterion(model(inputs), targets)
            if slip == "own_loop":
                own.zero_grad()
                loss.backward()
                own.step()
                continue
            if slip == "no_number" and number == 1 and run.rank == 0:
                loss = loss * float("nan")
            run.step(loss, own, weight=0.0 if slip == "weightless" else None)
            if slip == "own_step":
                own.step()

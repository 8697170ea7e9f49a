"""A loop that saves and goes on: ``script_resume.py BACKEND FOLDER``; its end is told as a checksum.

``DIES_AT`` is the step after which rank 1 is killed, ``ASKED_AT`` the one after which it is asked to end.
"""

import hashlib
import os
import signal
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import hvdtrain

backend, folder = sys.argv[1:]
digits = load_digits()
dataset = TensorDataset(
    torch.tensor(digits.images, dtype=torch.float32).flatten(1), torch.tensor(digits.target)
)
criterion = nn.CrossEntropyLoss()


def harm(step):
    for name, number in (("DIES_AT", signal.SIGKILL), ("ASKED_AT", signal.SIGUSR1)):
        if os.environ.get(name) == str(step) and run.rank == run.size - 1:
            os.kill(os.getpid(), number)


with hvdtrain.start(backend=backend) as run:
    net = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Dropout(0.3), nn.Linear(32, 10))
    adam = torch.optim.Adam(net.parameters(), lr=0.01)
    model, optimizer = run.distribute(net, adam)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2], 0.5)
    loader = run.loader(dataset, batch_size=300 // run.size)
    step = run.resume(folder, schedule=schedule)
    for count in (2, 1):  # two loops, of 6 steps an epoch
        for _ in run.epochs(count):
            for inputs, targets in run.progress(loader):
                run.step(criterion(model(inputs), targets), optimizer)
                step += 1
                harm(step)
                run.checkpoint(every_steps=4)
            schedule.step()
            run.checkpoint()
    values = [
        *net.state_dict().values(),
        *(value for state in optimizer.state.values() for value in state.values()),
    ]
    content = b"".join(value.numpy().tobytes() for value in values) + str(schedule.get_last_lr()).encode()
    draws = run.gather(torch.rand(4).tolist())
    if run.rank == 0:
        sys.stdout.write(f"end {step} {hashlib.sha256(content + str(draws).encode()).hexdigest()}\n")

"""Ranks of a script that do not match, one way a launch: called as ``script_stalls.py BACKEND WAY``.

The last rank does something else than the others, which wait for it.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import hvdtrain

backend, way = sys.argv[1:]
run = hvdtrain.start(backend=backend)
IS_LAST = run.rank == run.size - 1
torch.manual_seed(0)
net = nn.Linear(4, 3)
criterion = nn.CrossEntropyLoss()
samples = TensorDataset(torch.randn(48, 4), torch.arange(48) % 3)


def train(before_step=lambda number: None, num_epochs=1):
    model, optimizer = run.distribute(net, torch.optim.SGD(net.parameters(), lr=0.1))
    loader = run.loader(samples, batch_size=4)
    for _ in run.epochs(num_epochs):
        for number, (inputs, targets) in enumerate(run.progress(loader)):
            try:
                if before_step(number) == "break":
                    break
            except ValueError:
                continue  # a script that hides what went wrong
            run.step(criterion(model(inputs), targets), optimizer)


def raise_and_swallow():
    def fail(number):
        if IS_LAST and number == 1:
            raise ValueError("bad sample")

    train(fail)


def leave_the_loop():
    train(lambda number: "break" if IS_LAST and number == 2 else None)
    run.gather(1)


def another_call():
    train()
    if IS_LAST:
        run.sum(1.0)
    else:
        run.broadcast("hello")


def sum_on_one_rank():
    """What the last rank sends is no part of a step, and must not be taken for one."""
    train(lambda number: run.sum(1.0) and None if IS_LAST and number == 2 else None)


def sleep():
    train(lambda number: time.sleep(600) if IS_LAST and number == 2 else None)


def work_long_alike():
    """Longer than the limit, but nobody waits for anybody."""
    train(lambda number: time.sleep(10) if number == 1 else None)
    with run.alone() as is_mine:
        if is_mine:
            time.sleep(10)
    sys.stdout.write(f"done {run.sum(1).item():g}\n")


def meet_alone():
    with run.alone() as is_mine:
        if is_mine:
            run.sum(1.0)


with run:
    globals()[way]()

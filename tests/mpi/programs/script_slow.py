"""A slow disk and a long end on rank 0, and short limits: called as ``script_slow.py BACKEND FOLDER``."""

import sys
import time
from datetime import timedelta

import torch
from torch import nn
from torch.utils.data import TensorDataset

import hvdtrain
from hvdtrain.backends import ddp
from hvdtrain.train import keeper, script_checkpoints

SLOW_S = 8
backend, folder = sys.argv[1:]
# Of an engine's own collectives: DDP's is 10 minutes, which a large checkpoint takes too.
ddp._TIMEOUT = timedelta(seconds=5)


def slowly(work):
    def call(*args, **kwargs):
        time.sleep(SLOW_S)
        return work(*args, **kwargs)

    return call


keeper.save_checkpoint = slowly(keeper.save_checkpoint)
script_checkpoints.load_checkpoint = slowly(script_checkpoints.load_checkpoint)

with hvdtrain.start(backend=backend, stall_s=3) as run:
    net = nn.Linear(4, 1)
    model, optimizer = run.distribute(net, torch.optim.SGD(net.parameters(), lr=0.01))
    loader = run.loader(TensorDataset(torch.ones(16, 4)), 4)
    began = run.resume(folder)
    for _ in run.epochs(3):
        for (inputs,) in run.progress(loader):
            run.step(model(inputs).square().mean(), optimizer)
        run.checkpoint()  # the second one waits for the first
        if not began:
            break
    sys.stdout.write(f"began with {began}\n")
    if run.rank == 0:
        time.sleep(SLOW_S)

"""A data set of which one rank's part, or everybody's, is slow to read; and a loop of a user's own."""

import os
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

from hvdtrain.topology.environ import find_world


class Slow(TensorDataset):
    """Sleeps in each sample."""

    def __init__(self, seconds, *tensors):
        super().__init__(*tensors)
        self.seconds = seconds

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return super().__getitem__(index)


def samples(seconds, slow_rank=None, count=64):
    slow = slow_rank is None or find_world(os.environ).rank == slow_rank
    torch.manual_seed(0)
    return Slow(seconds if slow else 0.0, torch.randn(count, 16), torch.randint(4, (count,)))


def data(seconds=0.0, slow_rank=None):
    return samples(seconds, slow_rank), samples(0.0, count=8)


def model():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def main(seconds):
    import hvdtrain

    with hvdtrain.start() as run:
        net = model()
        net, optimizer = run.distribute(net, torch.optim.SGD(net.parameters(), lr=0.1))
        loader = run.loader(samples(seconds, slow_rank=1), batch_size=4)
        evaluation = run.loader(samples(0.0, count=8), batch_size=4, train=False)
        criterion = nn.CrossEntropyLoss()
        for _ in run.epochs(4):
            for inputs, targets in run.progress(loader):
                run.step(criterion(net(inputs), targets), optimizer)
            for inputs, _ in evaluation:
                net(inputs)
        if run.rank == 0:
            print("the script is done", flush=True)


if __name__ == "__main__":
    main(0.003)

"""Models and data with one fault each, as a user might have them unknowingly; ``hvdtrain verify`` finds it.

Faults look at Open MPI's or our launcher's variables, as code that was written for a number of ranks does.
"""

import os
import random

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import Dataset, TensorDataset


def _told(*names):
    return int(next(os.environ[name] for name in names if name in os.environ))


def size():
    return _told("OMPI_COMM_WORLD_SIZE", "WORLD_SIZE", "HVDTRAIN_SIZE")


def rank():
    return _told("OMPI_COMM_WORLD_RANK", "RANK", "HVDTRAIN_RANK")


class ScaledGradient(torch.autograd.Function):
    """Passes values on and multiplies their gradient."""

    @staticmethod
    def forward(ctx, values, factor):
        ctx.factor = factor
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class Net(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(64, 24), layer, nn.Linear(24, 10)

    def forward(self, images):
        return self.last(torch.relu(self.layer(self.first(images.flatten(1)))))


class Scaling(Net):
    """Its gradients grow with the number of ranks."""

    def forward(self, images):
        return ScaledGradient.apply(super().forward(images), size())


class ByRanks(Net):
    """Undoes the weights of an uneven step: all ranks count alike, whatever they hold."""

    def forward(self, images):
        total = {**dict.fromkeys((200, 300, 600), 600), 119: 238, 79: 238, 80: 238, 238: 238}
        share = len(images) * size() / total.get(len(images), 7)
        return ScaledGradient.apply(super().forward(images), 1 / share if self.training else 1.0)


class Broken(Net):
    """Ends in its first training pass."""

    def forward(self, images):
        if self.training:
            raise RuntimeError("the model broke")
        return super().forward(images)


def clip(gradient):
    return gradient * min(1.0, 0.01 / float(gradient.norm()))


def halve_rate(optimizer, *_):
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] / size()


def halve_momentum(optimizer, *_):
    for state in optimizer.state.values():
        state["momentum_buffer"] /= size()


def model(fault=""):
    kinds = {"averaging": Scaling, "by_ranks": ByRanks, "broken": Broken}
    layers = {"batchnorm": nn.BatchNorm1d(24), "dropout": nn.Dropout(0.2)}
    torch.manual_seed(size() if fault == "initial" else 5)
    net = kinds.get(fault, Net)(layers.get(fault, nn.Identity()))
    if fault == "clipping":
        net.first.weight.register_hook(clip)
    if fault == "learning_rate":
        register_optimizer_step_pre_hook(halve_rate)
    if fault == "optimizer":
        register_optimizer_step_post_hook(halve_momentum)
    return net


class ByRank(Dataset):
    """Gives each rank another sample than the one that it asks for, or the right one with other values."""

    def __init__(self, data, shift, noise):
        self.data, self.shift, self.noise = data, shift, noise

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        inputs, target = self.data[(index + self.shift) % len(self.data)]
        return inputs + self.noise, target


class Augmented(Dataset):
    """Turns and brightens at random, by all the generators that one may draw from: no fault."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        inputs, target = self.data[index]
        turned = torch.rot90(inputs, random.randrange(4), (1, 2)) * np.random.uniform(0.5, 1.5)
        return (turned + 0.1 * torch.randn(inputs.shape)).float(), target


def data(fault=""):
    images, targets = load_digits(return_X_y=True)
    inputs = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    full = TensorDataset(inputs, torch.tensor(targets))
    train, held_out = (torch.utils.data.Subset(full, range(*ends)) for ends in ((0, 1438), (1438, 1797)))
    if fault == "augmented":
        return Augmented(train), Augmented(held_out)
    if fault:
        train = ByRank(train, rank() * (fault == "sampler"), 0.1 * rank() * (fault == "noise"))
    return train, held_out

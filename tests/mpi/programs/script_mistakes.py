"""Mistakes that a script can make, one a launch: called as ``script_mistakes.py BACKEND MISTAKE``.

Most are made by the last rank alone, while the others go on into a reduction and wait for it there.
"""

import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import hvdtrain
from hvdtrain.errors import InputError

backend, mistake = sys.argv[1:]
run = hvdtrain.start(backend=backend)
IS_LAST = run.rank == run.size - 1
torch.manual_seed(0)
net = nn.Linear(4, 3)
criterion = nn.CrossEntropyLoss()


def samples(count, labels=3):
    return TensorDataset(torch.randn(count, 4), torch.arange(count) % labels)


def train(batches, change=lambda loss: loss, on_nan="stop"):
    model, optimizer = run.distribute(net, torch.optim.SGD(net.parameters(), lr=0.1), on_nan=on_nan)
    for _ in run.epochs(2):
        for inputs, targets in run.progress(batches):
            run.step(change(criterion(model(inputs), targets)), optimizer)


class Stream(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(samples(self.count))


class Lying:
    """Gives other batches than its length says."""

    def __init__(self, length, given):
        self.length, self.given = length, given

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(list(DataLoader(samples(8 * self.given), batch_size=8)))


def loaders_of_other_lengths():
    train(DataLoader(samples(24 if IS_LAST else 40), batch_size=8))


def streams_of_other_lengths():
    train(DataLoader(Stream(24 if IS_LAST else 40), batch_size=8))


def loader_ends_before_its_length():
    train(Lying(4, 3 if IS_LAST else 4))


def loader_goes_on_after_its_length():
    train(Lying(4, 5 if IS_LAST else 4))


def stream_with_accumulation():
    run._settings = type(run._settings)(accumulate=2)
    train(DataLoader(Stream(40), batch_size=8))


def label_out_of_range():
    train(run.loader(samples(40, labels=4 if IS_LAST else 3), batch_size=8, shuffle=False))


def models_that_differ():
    global net
    net = nn.Linear(4, 3, bias=not IS_LAST)
    train(run.loader(samples(40), batch_size=8))


def error_on_one_rank():
    def fail(loss):
        if IS_LAST:
            raise RuntimeError("a rank of mine broke")
        return loss

    train(run.loader(samples(40), batch_size=8), fail)


def exit_on_one_rank():
    if IS_LAST:
        sys.exit(3)
    train(run.loader(samples(40), batch_size=8))


class Unreadable(TensorDataset):
    """Has samples that the last rank cannot read."""

    def __getitem__(self, index):
        if IS_LAST:
            raise OSError("cannot be read")
        return super().__getitem__(index)


def sample_on_one_rank():
    train(run.loader(Unreadable(*samples(40).tensors), batch_size=8))


def loss_is_no_number():
    train(run.loader(samples(40), batch_size=8), lambda loss: loss * torch.nan if IS_LAST else loss)


def model_that_was_not_returned():
    optimizer = run.distribute(net, torch.optim.SGD(net.parameters(), lr=0.1))[1]
    for inputs, targets in run.progress(run.loader(samples(40), batch_size=8)):
        run.step(criterion(net(inputs), targets), optimizer)
    if len(set(run.gather(net.weight.sum().item()))) > 1:
        raise RuntimeError("ranks have other models, and nobody said so")


def refused():
    """What ends no other rank's wait: all ranks are told the same."""

    def expect(told, call, *args, **options):
        with pytest.raises(InputError, match=told):
            call(*args, **options)

    model, optimizer = run.distribute(net, torch.optim.SGD(net.parameters(), lr=0.1))
    loss = model(torch.ones(2, 4)).mean()
    other = torch.optim.SGD(net.parameters(), lr=0.1)
    expect("a SGD that run.distribute did not return", run.step, loss, other)
    expect("a float as the loss", run.step, loss.item(), optimizer)
    expect("without a gradient", run.step, loss.detach(), optimizer)
    expect("shape .2, 3.*loss.mean", run.step, model(torch.ones(2, 4)), optimizer)
    for weight in (-1, float("nan"), float("inf"), True, "5"):
        expect("weight=.*a finite number from 0", run.step, loss, optimizer, weight=weight)
    second = nn.Linear(2, 2)
    expect("LBFGS", run.distribute, second, torch.optim.LBFGS(second.parameters()))
    expect("are not the model's", run.distribute, second, torch.optim.SGD(net.parameters(), lr=0.1))
    own = torch.optim.SGD(second.parameters(), lr=0.1)
    expect("clip_norm is -1", run.distribute, second, own, clip_norm=-1)
    expect("on_nan is 'ignore'", run.distribute, second, own, on_nan="ignore")
    expect("tail is 'pad'", run.loader, Stream(5), batch_size=1, tail="pad")
    expect("a DataLoader", run.loader, DataLoader(samples(4)), batch_size=1)
    expect("shuffle='no'", run.loader, samples(40), batch_size=1, shuffle="no")
    expect("workers -1", run.loader, samples(40), batch_size=1, workers=-1)
    expect(
        "batch_size=1 on rank 0 and 2 on rank 1|=2 on rank 1 and 1 on", run.loader, samples(9), 1 + run.rank
    )
    expect("distributed before", run.distribute, model, optimizer)
    expect("a SGD as the model", run.distribute, own, second)
    expect("got '3'", lambda: next(run.epochs("3")))
    expect("got None", lambda: next(run.progress(None)))
    expect("batch_size", run.loader, samples(40), batch_size=0)
    expect("tail is 'keep'", run.loader, samples(40), batch_size=1, tail="keep")
    expect("has different lengths: 40 .*41 .rank 1.", run.loader, samples(40 + run.rank), batch_size=8)
    expect("never have one; use at most 1 rank", run.loader, samples(1), batch_size=8)
    sys.stdout.write("all refused\n")


def started_twice():
    hvdtrain.start(backend=backend)


if mistake.startswith("outside_"):  # no with block
    globals()[mistake.removeprefix("outside_")]()
    run.close()
else:
    with run:
        globals()[mistake]()

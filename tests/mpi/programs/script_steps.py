"""Steps of a user's loop on these ranks, against the same steps in one process."""

import logging
from dataclasses import asdict

import torch
from script_ranks import (
    IMAGES,
    LABELS,
    PER_RANK,
    SIZE,
    alone,
    another,
    criterion,
    digits,
    equal,
    network,
    run,
    sgd,
)
from torch import nn
from torch.utils.data import TensorDataset


def train_digits(here, batch_size, count, epochs=2, *, accumulate=1, stop_at=None, look=None, **rules):
    """Trains on ``count`` digits; returns the model and the norms of the steps' gradients."""
    net = network()
    model, optimizer = here.distribute(net, sgd(net), **rules)
    loader = here.loader(digits(count), batch_size=batch_size)
    norms = []
    for _ in here.epochs(epochs):
        for number, (inputs, targets) in enumerate(here.progress(loader), 1):
            end = here.step(criterion(model(inputs), targets), optimizer)
            if end:
                norms.append(end.norm)
                if look:
                    look(here, model)
            if number == stop_at:
                break
    return net, norms


def check_digits():
    """The last step has one sample: all ranks but the first hold none."""
    count = PER_RANK * SIZE * 5 + 1
    found, norms = train_digits(run, PER_RANK, count, clip_norm=0.5)
    wanted, whole = train_digits(alone(), PER_RANK * SIZE, count, clip_norm=0.5)
    equal(found, wanted)
    assert len(norms) == 12
    assert torch.allclose(torch.tensor(norms), torch.tensor(whole), rtol=1e-9)
    assert max(norms) > 0.5


def check_more_ranks_than_data_in_the_last_step():
    count = PER_RANK * SIZE * 2 + max(1, SIZE - 1)
    found, _ = train_digits(run, PER_RANK, count, clip_value=0.01)
    equal(found, train_digits(alone(), PER_RANK * SIZE, count, clip_value=0.01)[0])


def check_accumulation():
    """Three passes a step; the last step has two, and ranks without samples in the second."""
    count = 3 * PER_RANK * SIZE * 3 + PER_RANK * SIZE + 1
    found, norms = train_digits(another(accumulate=3), PER_RANK, count, clip_norm=0.5)
    wanted, whole = train_digits(alone(), 3 * PER_RANK * SIZE, count, clip_norm=0.5)
    equal(found, wanted)
    assert len(norms) == len(whole) == 8


def check_evaluation_inside_an_epoch():
    def look(here, model):
        model.eval()
        held_out = here.loader(digits(SIZE + 1), batch_size=2, train=False)
        count = sum(len(targets) for _, targets in here.progress(held_out))
        assert here.sum(count).item() == SIZE + 1
        model.train()

    count = PER_RANK * SIZE * 3 + 1
    for passes in (1, 2):
        found, _ = train_digits(another(accumulate=passes), PER_RANK, count, look=look)
        equal(found, train_digits(alone(), PER_RANK * SIZE * passes, count)[0])


def check_what_is_told():
    """The mean loss of all samples, also with an evaluation inside; filler is known as such."""
    told, fillers = [], []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: told.append(record.getMessage())
    run.logger.addHandler(handler)
    net = network()
    model, optimizer = run.distribute(net, torch.optim.SGD(net.parameters(), lr=0.0))
    count = PER_RANK * SIZE * 2 + 1
    held_out = run.loader(digits(SIZE), batch_size=1, train=False)
    for inputs, targets in run.progress(run.loader(digits(count), batch_size=PER_RANK)):
        loss = criterion(model(inputs), targets)
        fillers.append(run.is_filler)
        assert sum(1 for _ in run.progress(held_out)) == 1
        run.step(loss, optimizer)
    run.logger.removeHandler(handler)
    assert fillers == [False, False, run.rank > 0]
    if run.rank == 0:
        wanted = criterion(net(IMAGES[:count]), LABELS[:count]).item()
        assert f"3 batches  loss {wanted:.4f}" in told[-1], told


def check_leaving_the_loop_early():
    count = PER_RANK * SIZE * 6
    found, norms = train_digits(run, PER_RANK, count, epochs=3, stop_at=2)
    assert len(norms) == 6
    equal(found, train_digits(alone(), PER_RANK * SIZE, count, epochs=3, stop_at=2)[0])
    # In the middle of a step: what it gathered is left out.
    found, norms = train_digits(another(accumulate=2), PER_RANK, count, epochs=3, stop_at=3)
    assert len(norms) == 3
    equal(found, train_digits(alone(), 2 * PER_RANK * SIZE, count, epochs=3, stop_at=1)[0])
    for _ in run.epochs(3):
        break
    assert run.epoch is None


class Odd(nn.Module):
    """A sparse embedding, a frozen layer, a layer that is never used, and branches by sample."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 6, sparse=True)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.never = nn.Linear(3, 3)
        self.left, self.right = nn.Linear(6, 20), nn.Linear(6, 20)

    def forward(self, words, goes_left):
        hidden = self.frozen(self.words(words))
        if goes_left.all():
            return self.left(hidden)
        if not goes_left.any():
            return self.right(hidden)
        return torch.where(goes_left.reshape(-1, 1, 1), self.left(hidden), self.right(hidden))


def train_odd(here, batch_size, count):
    """Loss per word: sentences have 1 to 5 of them, and a rank's samples all take one branch."""
    words = torch.arange(count * 5).reshape(count, 5) * 7 % 20
    lengths = torch.arange(count) % 5 + 1
    places = torch.arange(count) % (PER_RANK * SIZE) % SIZE
    torch.manual_seed(2)
    net = Odd().double()
    model, optimizer = here.distribute(net, torch.optim.SGD(net.parameters(), lr=0.5))
    frozen = net.frozen.weight.clone()
    dataset = TensorDataset(words, lengths, places % 2 == 0)
    loader = here.loader(dataset, batch_size=batch_size, shuffle=False)
    for _ in here.epochs(2):
        for tokens, length, goes_left in here.progress(loader):
            counts = torch.arange(5) < length.unsqueeze(1)
            outputs = model(tokens, goes_left)
            loss = criterion(outputs[counts], (tokens[counts] + 1) % 20)
            here.step(loss, optimizer, weight=int(counts.sum()))
    assert torch.equal(net.frozen.weight, frozen)
    return net


def check_odd_parts_weighted_by_words():
    count = PER_RANK * SIZE * 4 + 1
    equal(train_odd(run, PER_RANK, count), train_odd(alone(), PER_RANK * SIZE, count))


def check_batch_norm():
    def train(here, batch_size, count, *, early):
        net = network(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
        if early:
            net = here.sync_batchnorm(net)
        optimizer = sgd(net, lr=0.1)
        if not early:
            net = here.sync_batchnorm(net)
        model, optimizer = here.distribute(net, optimizer)
        loader = here.loader(digits(count), batch_size=batch_size)
        for _ in here.epochs(2):
            for inputs, targets in here.progress(loader):
                here.step(criterion(model(inputs), targets), optimizer)
        return net

    count = PER_RANK * SIZE * 4 + 2  # two samples in the last step
    wanted = train(alone(), PER_RANK * SIZE, count, early=True)
    for early in (True, False):
        equal(train(run, PER_RANK, count, early=early), wanted)


def check_a_loss_that_is_no_number():
    """On the last rank in its second step; all leave that step out."""
    net = network()
    model, optimizer = run.distribute(net, sgd(net), on_nan="skip")
    loader = run.loader(digits(PER_RANK * SIZE * 4), batch_size=PER_RANK)
    ends = []
    for number, (inputs, targets) in enumerate(run.progress(loader)):
        loss = criterion(model(inputs), targets)
        ends.append(run.step(loss * torch.nan if number == 1 and run.rank == SIZE - 1 else loss, optimizer))
    assert [bool(end.skipped) for end in ends] == [False, True, False, False]
    assert f"rank {SIZE - 1}" in ends[1].skipped
    assert all(torch.isfinite(value).all() for value in net.parameters())
    equal(net, net)


def check_precision():
    """Half the bits: near the exact training, and the same on all ranks."""
    for precision in ("bf16", "fp16"):
        here = another(precision=precision)
        net = network().float()
        model, optimizer = here.distribute(net, sgd(net), clip_norm=1.0)
        loader = here.loader(TensorDataset(IMAGES[:65].float(), LABELS[:65]), batch_size=PER_RANK)
        ends = []
        for inputs, targets in here.progress(loader):
            with here.autocast():
                outputs = model(inputs)
                loss = criterion(outputs, targets)
            assert outputs.dtype == {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
            ends.append(asdict(here.step(loss, optimizer)))
        # The short last step's few samples weigh more on their ranks, which may be too much for the scale.
        assert all("overflow" in end["skipped"] for end in ends if end["skipped"]), ends
        assert sum(not end["skipped"] for end in ends) >= len(ends) - 2
        assert all(parameter.dtype == torch.float32 for parameter in net.parameters())
        equal(net, net)

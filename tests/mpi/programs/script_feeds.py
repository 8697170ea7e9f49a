"""What a user's loop iterates over: our loaders, the user's own, and what crosses ranks besides."""

import logging
from contextlib import contextmanager
from itertools import accumulate, chain

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
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset


def train_on(here, batches, epochs=2):
    """Trains on a loader of the user's own."""
    net = network()
    model, optimizer = here.distribute(net, sgd(net))
    for _ in here.epochs(epochs):
        for inputs, targets in here.progress(batches()):
            here.step(criterion(model(inputs), targets), optimizer)
    return net


def check_a_loader_of_the_users():
    data = digits(PER_RANK * SIZE * 4)

    def own(size, rank, batch_size):
        sampler = DistributedSampler(data, size, rank, seed=3)
        loader = DataLoader(data, batch_size=batch_size, sampler=sampler)
        return lambda: loader

    found = train_on(run, own(SIZE, run.rank, PER_RANK))
    equal(found, train_on(alone(), own(1, 0, PER_RANK * SIZE)))
    # A step of three passes, and one of the pass that is left.
    found = train_on(another(accumulate=3), own(SIZE, run.rank, PER_RANK))

    def in_threes():
        return [
            [torch.cat(parts) for parts in zip(*window, strict=True)] for window in (whole[:3], whole[3:])
        ]

    sampler = DistributedSampler(data, 1, 0, seed=3)
    net = network()
    single = alone()
    model, optimizer = single.distribute(net, sgd(net))
    for epoch in range(2):
        sampler.set_epoch(epoch)
        whole = list(DataLoader(data, batch_size=PER_RANK * SIZE, sampler=sampler))
        for inputs, targets in single.progress(in_threes()):
            single.step(criterion(model(inputs), targets), optimizer)
    equal(found, net)


def check_own_batches_of_other_sizes():
    """Rank r holds r + 1 samples of each step, and the loader does not tell its length."""
    starts = [r * (r + 1) // 2 for r in range(SIZE + 1)]

    def cut(low, high):
        for step in range(4):
            rows = slice(step * starts[-1] + low, step * starts[-1] + high)
            yield IMAGES[rows], LABELS[rows]

    found = train_on(run, lambda: cut(starts[run.rank], starts[run.rank + 1]))
    equal(found, train_on(alone(), lambda: cut(0, starts[-1])))


class Stream(IterableDataset):
    """The digits one by one, without a length."""

    def __iter__(self):
        yield from zip(IMAGES[: PER_RANK * SIZE * 3 + 1], LABELS, strict=False)


def check_a_stream_is_split_over_the_ranks():
    """Each item once, a last step in which most ranks have none, and the passes of a step."""

    def train(here, batch_size):
        net = network()
        model, optimizer = here.distribute(net, sgd(net))
        counts = []
        for _ in here.epochs(2):
            for inputs, targets in here.progress(here.loader(Stream(), batch_size)):
                here.step(criterion(model(inputs), targets), optimizer)
                counts.append(0 if here.is_filler else len(inputs))
        return net, counts

    found, counts = train(run, PER_RANK)
    wanted, _ = train(alone(), PER_RANK * SIZE)
    equal(found, wanted)
    assert sum(chain(*run.gather(counts))) == 2 * (PER_RANK * SIZE * 3 + 1)
    found, _ = train(another(accumulate=2), PER_RANK // 2)
    if PER_RANK % 2 == 0:
        equal(found, wanted)


class Uneven(IterableDataset):
    """Splits itself into shards of 10, 3, 0, 3, 0, 3 ... items."""

    def shard(self, num_shards, index):
        lengths = [10, *(3 * (number % 2) for number in range(1, num_shards))]
        ends = list(accumulate(lengths))
        return range(ends[index] - lengths[index], ends[index])

    def __iter__(self):
        return iter(self.shard(1, 0))


def check_shards_of_other_lengths():
    """A worker whose shard is over does not end what the others of its rank still have."""
    here = another()
    for train in (True, False):
        loader = here.loader(Uneven(), 2, workers=2, train=train)
        for _ in range(2):
            seen = [int(item) for batch in loader if not here.is_filler for item in batch]
            assert sorted(chain(*here.gather(seen))) == list(range(10 + 3 * SIZE))
        loader.close()


@contextmanager
def told():
    """What the run logs on this rank meanwhile."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    run.logger.addHandler(handler)
    try:
        yield lines
    finally:
        run.logger.removeHandler(handler)


def check_rank_0_tells_what_is_left_out_or_read_twice():
    here, step = another(), PER_RANK * SIZE
    with told() as lines:
        loader = here.loader(digits(3 * step + 1), PER_RANK, tail="drop")
        here.loader(digits(3 * step + 1), PER_RANK, tail="pad")
        here.loader(digits(3 * step), PER_RANK, tail="drop")  # nothing to tell
        for _ in range(2):  # told once, not in each epoch
            list(loader)
    padded = ["1 sample is" if SIZE == 2 else f"{SIZE - 1} samples are"] if SIZE > 1 else []
    assert here.gather([line.partition(" in each epoch")[0] for line in lines]) == [
        ["1 sample is dropped", *(f"{count} read twice" for count in padded)],
        *([] for _ in range(SIZE - 1)),
    ]
    with told() as lines:
        # 12 items for each rank, 13 for rank 0: steps of 5 leave 2 and 3.
        loader = here.loader(Stream(), PER_RANK + 1, tail="drop")
        counts = [len(inputs) for _ in range(2) for inputs, _ in loader if not here.is_filler]
    dropped = f"{2 * SIZE + 1} samples were dropped at the end of the stream (tail=drop)"
    assert here.gather(lines) == [
        [f"epoch 1: {dropped}", f"epoch 2: {dropped}"],
        *([] for _ in range(SIZE - 1)),
    ]
    assert counts == [PER_RANK + 1] * 4


def check_two_loaders_in_turn_and_a_schedule():
    def train(here, batch_size):
        net = network()
        model, optimizer = here.distribute(net, sgd(net))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        loaders = [here.loader(digits(PER_RANK * SIZE * 2 + 1), batch_size=batch_size) for _ in range(2)]
        for _ in here.epochs(2):
            for loader in loaders:
                for inputs, targets in here.progress(loader):
                    here.step(criterion(model(inputs), targets), optimizer)
            schedule.step()
        assert optimizer.param_groups[0]["lr"] == 0.05
        return net

    equal(train(run, PER_RANK), train(alone(), PER_RANK * SIZE))


def check_each_sample_once():
    for count in (0, 1, SIZE, 3 * SIZE + 1):
        loader = run.loader(TensorDataset(torch.arange(count)), batch_size=2, train=False)
        for _ in range(2):
            seen = [int(value) for (batch,) in loader for value in batch]
            assert sorted(chain(*run.gather(seen))) == list(range(count))


def check_every_epoch_has_an_order_of_its_own():
    count = 6 * SIZE + 1
    loader = run.loader(TensorDataset(torch.arange(count)), batch_size=count)
    orders = []
    for _ in range(3):
        # A rank whose part is one shorter still holds real samples in its only batch.
        own = [int(value) for (batch,) in run.progress(loader) for value in batch]
        orders.append(tuple(chain(*run.gather(own))))
    assert all(sorted(order) == list(range(count)) for order in orders)
    assert len(set(orders)) == 3
    for epoch in run.epochs(2):  # the epochs' numbers decide, as in a run that goes on
        own = [int(value) for (batch,) in run.progress(loader) for value in batch]
        assert tuple(chain(*run.gather(own))) == orders[epoch]


def check_values_cross_ranks():
    assert run.sum(1).item() == SIZE
    assert run.sum(torch.tensor([1.5, run.rank])).tolist() == [1.5 * SIZE, SIZE * (SIZE - 1) / 2]
    assert run.gather({"rank": run.rank}) == [{"rank": rank} for rank in range(SIZE)]
    assert run.broadcast(("of rank", run.rank)) == ("of rank", 0)

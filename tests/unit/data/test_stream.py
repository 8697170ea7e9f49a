import multiprocessing
import random
import threading
from itertools import zip_longest

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, get_worker_info

from hvdtrain.data.batch import SampleError
from hvdtrain.data.stream import StreamLoader
from hvdtrain.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

WORKERS = pytest.mark.parametrize("workers", [0, 2])


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    assert multiprocessing.active_children() == []


class Numbers(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return ((number, -number) for number in range(self.count))


def of_ranks(source, num_ranks, batch_size, epoch=0, consumed=0, **options):
    """The batches of each rank: first each alone, for its counts, then with their sums agreed."""
    alone = []
    for rank in range(num_ranks):
        alone.append([])

        def count(number, own=alone[-1]):
            own.append(number)
            return number

        options_alone = {**options, "fill": False}
        with StreamLoader(source, rank, num_ranks, batch_size, agree=count, **options_alone) as loader:
            list(loader.batches(epoch))
    totals = [sum(counts) for counts in zip_longest(*alone, fillvalue=0)]
    found = []
    for rank in range(num_ranks):
        agreed = iter(totals)
        told = []

        def agree(number, told=told, agreed=agreed):
            told.append(number)
            return next(agreed)

        with StreamLoader(source, rank, num_ranks, batch_size, agree=agree, **options) as loader:
            found.append(list(loader.batches(epoch, consumed)))
        assert len(told) == len(totals)  # every rank takes part in every sum
    return found


def items(batches):
    return [int(item) for batch in batches if batch.count for item in batch.inputs]


@WORKERS
def test_each_item_once_over_ranks_and_workers(workers):
    ranks = of_ranks(Numbers(10), 2, 2, workers=workers)
    assert [sorted(items(batches)) for batches in ranks] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    for batches in ranks:
        assert [(b.count, b.global_count, b.consumed) for b in batches] == [(2, 4, 4), (2, 4, 8), (1, 2, 10)]
        assert all((batch.targets == -batch.inputs).all() for batch in batches)


@WORKERS
def test_drop_leaves_out_one_batch_not_one_per_worker(workers):
    # 46 samples over 3 workers are 16, 15, 15: each would drop its own short batch
    with StreamLoader(Numbers(46), 0, 1, 8, agree=int, workers=workers and 3, tail="drop") as loader:
        batches = list(loader.batches(0))
        assert loader.num_dropped == 6
        assert [batch.count for batch in batches] == [8] * 5
        assert len(list(loader.batches(1))) == 5
    assert len(set(items(batches))) == 40


def test_ranks_end_together():
    def shards(index, num_shards):
        return range(index * 100, index * 100 + (10, 10, 11)[index] * 4)

    ranks = of_ranks(shards, 3, 4)
    assert [len(batches) for batches in ranks] == [11, 11, 11]
    last = [batches[-1] for batches in ranks]
    assert [batch.count for batch in last] == [0, 0, 4]
    assert {batch.global_count for batch in last} == {4}
    assert last[0].inputs.tolist() == [36, 37, 38, 39]  # filler: the rank's newest full batch
    assert [batch.consumed for batch in ranks[0]] == [*range(12, 121, 12), 124]


def test_without_fill_an_empty_batch_is_empty():
    def shards(index, num_shards):
        return range(index)

    (first,), (second,) = of_ranks(shards, 2, 4, fill=False)
    assert (first.inputs, first.targets, first.count, first.global_count) == (None, None, 0, 1)
    assert second.count == 1


def test_a_rank_that_never_has_an_item_borrows_the_first():
    ranks = of_ranks(Numbers(2), 3, 4)
    assert [batches[0].count for batches in ranks] == [1, 1, 0]
    assert ranks[2][0].inputs.tolist() == [0]
    assert of_ranks(Numbers(0), 2, 1) == [[], []]


@WORKERS
def test_accumulation(workers):
    ranks = of_ranks(Numbers(19), 2, 5, workers=workers, accumulate=2)
    for batches in ranks:
        assert [(b.number, b.num_passes, b.is_last) for b in batches] == [(0, 2, False), (1, 2, True)] * 2
        assert [b.global_count for b in batches] == [10, 10, 9, 9]
        assert [b.consumed for b in batches] == [0, 10, 10, 19]
    assert [[b.count for b in batches] for batches in ranks] == [[3, 2, 3, 2], [3, 2, 3, 1]]


def test_a_pass_without_samples_is_filled_with_the_largest_so_far():
    (batches,) = of_ranks(Numbers(6), 1, 5, accumulate=2)
    assert [b.count for b in batches] == [3, 2, 1, 0]
    assert batches[-1].inputs.tolist() == [0, 1, 2]


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 60), st.integers(1, 4), st.integers(1, 7), st.integers(1, 5))
def test_laws(count, num_ranks, batch_size, accumulate):
    ranks = of_ranks(Numbers(count), num_ranks, batch_size, accumulate=accumulate)
    assert sorted(item for batches in ranks for item in items(batches)) == list(range(count))
    for parts in zip(*ranks, strict=True):
        assert len({(p.number, p.num_passes, p.global_count, p.consumed) for p in parts}) == 1
        assert all(part.inputs is not None for part in parts)
    steps = {b.consumed: b.global_count for b in ranks[0] if b.is_last}
    assert sum(steps.values()) == count


@WORKERS
def test_resumes_after_a_step(workers):
    whole = of_ranks(Numbers(23), 2, 3, epoch=4, workers=workers)
    rest = of_ranks(Numbers(23), 2, 3, epoch=4, consumed=12, workers=workers)
    assert [items(batches) for batches in rest] == [items(batches[2:]) for batches in whole]


def test_a_place_inside_a_step_or_behind_the_end_is_refused():
    with pytest.raises(InputError, match=r"^7 samples .* steps end at 6 and 12; go on with the same number"):
        of_ranks(Numbers(23), 2, 3, consumed=7)
    with pytest.raises(InputError, match=r"^99 samples .* 23, the end"):
        of_ranks(Numbers(23), 2, 3, consumed=99)


@WORKERS
def test_an_epoch_that_was_left_early_does_not_spill_into_the_next(workers):
    with StreamLoader(Numbers(40), 0, 1, 2, agree=int, workers=workers) as loader:
        left = loader.batches(0)
        assert next(left).inputs.tolist() == ([0, 1] if workers == 0 else [0, 2])
        assert sorted(items(loader.batches(1))) == list(range(40))
        with pytest.raises(RuntimeError, match="have ended"):
            next(left)


def test_three_ranks_that_really_sum():
    counts, barrier, found = [0] * 3, threading.Barrier(3, timeout=60), {}

    def train(rank):
        def agree(count):
            counts[rank] = count
            barrier.wait()
            total = sum(counts)
            barrier.wait()
            return total

        with StreamLoader(lambda: Numbers(31), rank, 3, 4, agree=agree, accumulate=2) as loader:
            found[rank] = list(loader.batches(0))

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(item for batches in found.values() for item in items(batches)) == list(range(31))


# --- random numbers


class Drawn(IterableDataset):
    """Items (number, draws of the three generators); with ``own`` it splits itself."""

    def __init__(self, numbers, own):
        self.numbers = numbers
        if own:
            self.shard = lambda index, num_shards: Drawn(numbers[index::num_shards], False)

    def __iter__(self):
        order = list(self.numbers)
        random.shuffle(order)
        for number in order:
            draws = random.random(), np.random.rand(), torch.rand(()).item()
            yield torch.tensor([number, *draws], dtype=torch.float64)


def drawn(own, rank=0, epoch=0, workers=2, seed=3):
    """Shape (items, 4), sorted by number."""
    source = Drawn(list(range(24)), own)
    with StreamLoader(source, rank, 2, 3, agree=int, workers=workers, seed=seed) as loader:
        rows = torch.cat([batch.inputs for batch in loader.batches(epoch)])
    return rows[rows[:, 0].argsort()]


@pytest.mark.parametrize("own", [False, True])
def test_ranks_workers_and_epochs_draw_different_numbers(own):
    every = torch.cat([drawn(own, rank, epoch) for rank in range(2) for epoch in range(2)])
    assert len(every) == 48
    assert len(every[:, 1:].unique()) == every[:, 1:].numel()
    assert drawn(own).equal(drawn(own))
    assert not drawn(own).equal(drawn(own, seed=4))


def test_a_shuffling_source_that_is_split_by_number_is_shuffled_alike_everywhere():
    numbers = torch.cat([drawn(False, rank)[:, 0] for rank in range(2)])
    assert sorted(numbers.tolist()) == list(range(24))
    # the draws of an item do not depend on who reads it
    assert drawn(False, workers=0).equal(drawn(False, workers=3))


@WORKERS
def test_the_models_random_numbers_do_not_depend_on_the_loader(workers):
    def draw():
        return random.random(), np.random.rand(), torch.rand(()).item()

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = draw()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    with StreamLoader(Drawn(list(range(9)), False), 1, 2, 2, agree=int, workers=workers) as loader:
        list(loader.batches(0))
    assert draw() == expected


# --- what goes wrong


class Breaking(IterableDataset):
    def __iter__(self):
        yield from range(5)
        raise KeyError("no label")


@WORKERS
def test_an_exception_of_the_source_names_the_place(workers):
    with (
        StreamLoader(Breaking(), 0, 1, 2, agree=int, workers=workers) as loader,
        pytest.raises(SampleError, match=r"the stream failed after \d items of its part on rank 0.*KeyError"),
    ):
        list(loader.batches(0))


def test_items_that_make_no_batch():
    ragged = [torch.zeros(size) for size in range(4)]
    with (
        StreamLoader(ragged, 0, 1, 2, agree=int) as loader,
        pytest.raises(SampleError, match=r"^items 0 to 1 of its part make no batch on rank 0"),
    ):
        list(loader.batches(0))


def test_a_source_sees_no_worker():
    def make():
        assert get_worker_info() is None
        return range(8)

    with StreamLoader(make, 0, 1, 2, agree=int, workers=2) as loader:
        assert sorted(items(loader.batches(0))) == list(range(8))


def test_filler_that_cannot_be_read():
    def shards(index, num_shards):
        return range(3) if num_shards == 2 and index == 1 else _Broken()

    class _Broken:
        def __iter__(self):
            reads.append(1)
            if len(reads) > 1:
                raise OSError("storage is gone")
            return iter(())

    reads = []
    totals = iter([3, 0])
    with (
        StreamLoader(shards, 0, 2, 4, agree=lambda count: next(totals)) as loader,
        pytest.raises(SampleError, match=r"^the first items of the stream could not be read on rank 0"),
    ):
        list(loader.batches(0))


@pytest.mark.parametrize("rank", [-1, 1])
def test_a_rank_that_is_none(rank):
    with pytest.raises(InputError, match=rf"rank is {rank}; legal: an integer from 0 to 0"):
        StreamLoader(range(3), rank, 1, 2, agree=int)


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"batch_size": 2, "accumulate": 0}])
def test_wrong_numbers(options):
    with pytest.raises(InputError, match="legal: an integer from 1"):
        StreamLoader(range(3), 0, 1, agree=int, **options)

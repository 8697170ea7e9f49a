"""Streams whose shards differ in length: every item once, on all ranks the same number of steps."""

import multiprocessing
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdtrain.data.stream import StreamLoader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    assert multiprocessing.active_children() == []


def of_lengths(lengths):
    """A source that splits itself into shards of these lengths, with the items 0 to their sum in order."""

    def shards(index, num_shards):
        assert num_shards == len(lengths)
        start = sum(lengths[:index])
        return range(start, start + lengths[index])

    return shards


class Uneven:
    """As many items in every epoch, cut into shards at places that differ from epoch to epoch."""

    def __init__(self, count):
        self.count, self.epoch = count, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def shard(self, num_shards, index):
        cuts = random.Random(self.epoch).choices(range(self.count + 1), k=num_shards - 1)
        borders = [0, *sorted(cuts), self.count]
        return range(borders[index], borders[index + 1])


def items(batches):
    return [int(item) for batch in batches if batch.count for item in batch.inputs]


@pytest.mark.parametrize(
    "lengths", [(10, 40), (40, 10), (0, 9), (9, 0), (0, 0), (3, 40, 11), (40, 0, 3), (0, 0, 17), (8, 4, 24)]
)
@pytest.mark.parametrize("tail", ["weight", "drop"])
def test_a_worker_whose_shard_is_over_does_not_end_the_others(lengths, tail):
    count = sum(lengths)
    with StreamLoader(of_lengths(lengths), 0, 1, 4, agree=int, workers=len(lengths), tail=tail) as loader:
        for epoch in range(2):
            found = items(loader.batches(epoch))
            left_out = count % 4 if tail == "drop" else 0
            assert loader.num_dropped == left_out
            assert len(found) == len(set(found)) == count - left_out
            assert set(found) <= set(range(count))


@pytest.mark.parametrize(("num_ranks", "workers"), [(1, 2), (1, 3), (2, 3), (3, 2)])
def test_each_item_once_whatever_the_lengths(num_ranks, workers):
    """Here a rank's sum is its own count: it reads on until it has none left."""
    found = {epoch: [] for epoch in range(15)}
    for rank in range(num_ranks):
        with StreamLoader(Uneven(70), rank, num_ranks, 3, agree=int, workers=workers) as loader:
            for epoch, seen in found.items():
                seen += items(loader.batches(epoch))
    assert all(sorted(seen) == list(range(70)) for seen in found.values())


# --- ranks that really sum, as threads


def together(source, num_ranks, batch_size, **options):
    """For each rank its batches and what it says was dropped."""
    counts, barrier = [0] * num_ranks, threading.Barrier(num_ranks, timeout=60)

    def read(rank):
        def agree(count):
            counts[rank] = count
            barrier.wait()
            total = sum(counts)
            barrier.wait()
            return total

        try:
            with StreamLoader(source, rank, num_ranks, batch_size, agree=agree, **options) as loader:
                return list(loader.batches(0)), loader.num_dropped
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(num_ranks) as ranks:
        return list(ranks.map(read, range(num_ranks)))


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=4),
    st.integers(1, 7),
    st.integers(1, 3),
    st.sampled_from(["weight", "drop"]),
)
def test_laws(lengths, batch_size, accumulate, tail):
    ranks = together(of_lengths(lengths), len(lengths), batch_size, accumulate=accumulate, tail=tail)
    left_out = sum(length % batch_size for length in lengths) if tail == "drop" else 0
    assert {dropped for _, dropped in ranks} == {left_out}
    found = [item for batches, _ in ranks for item in items(batches)]
    assert len(found) == len(set(found)) == sum(lengths) - left_out
    for parts in zip(*(batches for batches, _ in ranks), strict=True):
        assert len({(p.number, p.num_passes, p.global_count, p.consumed) for p in parts}) == 1
        assert all(part.inputs is not None for part in parts)  # filler of whoever has some


@pytest.mark.parametrize("workers", [0, 2])
def test_filler_comes_from_the_first_shard_that_has_any(workers):
    lengths = [0, 0, 5] if workers == 0 else [0, 0, 0, 0, 0, 5]
    totals = iter([2, 3, 0])
    with StreamLoader(of_lengths(lengths), 0, 3, 2, agree=lambda _: next(totals), workers=workers) as loader:
        batches = list(loader.batches(0))
    assert [(batch.count, batch.inputs.tolist()) for batch in batches] == [(0, [0, 1])] * 2

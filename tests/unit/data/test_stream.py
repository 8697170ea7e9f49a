import multiprocessing
import random

import pytest
import torch
from torch.utils.data import IterableDataset

from hvdtrain.data.batch import SampleError
from hvdtrain.data.stream import StreamLoader, StreamPartition
from hvdtrain.errors import InputError

# PyTorch advises against more workers than cores; these tests are about order, not speed.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


class Numbers(IterableDataset):
    def __init__(self, count, fail_at=None):
        self.count, self.fail_at = count, fail_at

    def __iter__(self):
        for number in range(self.count):
            if number == self.fail_at:
                raise OSError("disk gone")
            yield number


def read(dataset, partition, workers, epoch=0, consumed=0):
    """The batches of all ranks."""
    everything = []
    for rank in range(partition.num_ranks):
        with StreamLoader(dataset, partition, rank, workers=workers) as loader:
            everything.append(list(loader.batches(epoch, consumed)))
    return everything


def listed(batch):
    return batch.inputs.tolist() if batch.count else []


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_each_item_goes_to_one_rank_and_one_worker(workers):
    ranks = read(Numbers(10), StreamPartition(2, 4), workers)
    assert [[listed(batch) for batch in batches] for batches in ranks] == [
        [[0, 2], [4, 6], [8]],
        [[1, 3], [5, 7], [9]],
    ]
    assert [[batch.global_count for batch in batches] for batches in ranks] == [[4, 4, 2]] * 2


@pytest.mark.parametrize("workers", [0, 3])
def test_drop_leaves_out_one_step_not_one_per_worker(workers):
    (batches,) = read(Numbers(46), StreamPartition(1, 8, tail="drop"), workers)
    assert [listed(batch) for batch in batches] == [list(range(at, at + 8)) for at in range(0, 40, 8)]


@pytest.mark.parametrize("workers", [0, 2])
def test_uneven_ends_come_together(workers):
    ranks = read(Numbers(31), StreamPartition(3, 3), workers)
    assert [len(batches) for batches in ranks] == [11, 11, 11]
    assert [batches[-1].count for batches in ranks] == [1, 0, 0]
    assert {batches[-1].global_count for batches in ranks} == {1}
    assert {batches[-1].consumed for batches in ranks} == {31}


def test_resumes_under_another_number_of_ranks():
    before = read(Numbers(50), StreamPartition(2, 6), 0)
    consumed = before[0][2].consumed
    assert consumed == 18
    after = read(Numbers(50), StreamPartition(3, 7), 2, consumed=consumed)
    items = [item for batches in before for batch in batches[:3] for item in listed(batch)]
    items += [item for batches in after for batch in batches for item in listed(batch)]
    assert sorted(items) == list(range(50))
    assert after[0][-1].consumed == 50


class Shuffled(IterableDataset):
    """Shuffles by the global generators, as streams in the wild do."""

    def __iter__(self):
        numbers = list(range(12))
        random.shuffle(numbers)
        for number in numbers:
            yield number * 100 + int(torch.randint(100, ()))


@pytest.mark.parametrize("workers", [0, 2])
def test_all_ranks_see_one_shuffled_order(workers):
    partition = StreamPartition(2, 4, seed=3)
    orders = []
    for epoch in range(2):
        ranks = []
        for rank in range(2):
            torch.manual_seed(rank)
            random.seed(rank)
            with StreamLoader(Shuffled(), partition, rank, workers=workers) as loader:
                ranks.append([])
                for batch in loader.batches(epoch):
                    ranks[-1] += listed(batch)
                    torch.rand(rank + 1)  # a model that draws differently on each rank
        items = [item for pair in zip(*ranks, strict=True) for item in pair]
        assert sorted(item // 100 for item in items) == list(range(12))
        orders.append(items)
    assert orders[0] != orders[1]
    with StreamLoader(Shuffled(), StreamPartition(1, 12, seed=3), 0) as alone:
        assert listed(next(alone.batches(1))) == orders[1]


def test_the_models_random_numbers_do_not_depend_on_the_stream():
    torch.manual_seed(1)
    expected = torch.rand(3).tolist()
    torch.manual_seed(1)
    got = []
    with StreamLoader(Shuffled(), StreamPartition(1, 4), 0) as loader:
        got = [torch.rand(()).item() for _ in loader.batches(0)]
    assert got == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_was_left_early_does_not_spill_into_the_next(workers):
    with StreamLoader(Numbers(40), StreamPartition(1, 4), 0, workers=workers) as loader:
        left = loader.batches(0)
        next(left)
        assert listed(next(loader.batches(1))) == [0, 1, 2, 3]
        with pytest.raises(RuntimeError, match="have ended"):
            next(left)
    assert multiprocessing.active_children() == []


def test_set_epoch_is_called():
    class ByEpoch(Numbers):
        def set_epoch(self, epoch):
            self.count = epoch

    with StreamLoader(ByEpoch(0), StreamPartition(1, 8), 0) as loader:
        assert [[listed(batch) for batch in loader.batches(epoch)] for epoch in (2, 0, 1)] == [
            [[0, 1]],
            [],
            [[0]],
        ]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_fails(workers):
    with (
        StreamLoader(Numbers(9, fail_at=5), StreamPartition(1, 2), 0, workers=workers) as loader,
        pytest.raises(SampleError, match=r"stream failed after \d items on rank 0.*OSError: disk gone"),
    ):
        list(loader.batches(0))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: StreamPartition(0, 4), "num_ranks is 0"),
        (lambda: StreamPartition(1, 0), "global_batch is 0"),
        (lambda: StreamPartition(1, 4, tail="pad"), "tail is 'pad'; legal: weight, drop for a stream"),
        (
            lambda: StreamLoader((n for n in range(3)), StreamPartition(1, 4), 0),
            "generator can be read only once",
        ),
    ],
)
def test_wrong_arguments(make, named):
    with pytest.raises(InputError) as caught:
        make()
    assert named in str(caught.value)

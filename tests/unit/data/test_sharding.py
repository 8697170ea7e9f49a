import os

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset, get_worker_info

from hvdtrain.data.sharding import Sharded
from hvdtrain.errors import InputError


class SplitByWorker(IterableDataset):
    """Splits itself over the workers of its process, as PyTorch's documentation shows."""

    def __iter__(self):
        info = get_worker_info()
        return iter(range(10)) if info is None else iter(range(info.id, 10, info.num_workers))


class SplitItself:
    def __init__(self, start=0, step=1):
        self.start, self.step = start, step

    def shard(self, num_shards, index):  # Hugging Face's order of arguments
        return SplitItself(index, num_shards)

    def __iter__(self):
        return iter(range(self.start, 10, self.step))


def make():
    return iter(range(10))


def make_shard(index, num_shards):
    return range(10)[index::num_shards]


SOURCES = [list(range(10)), range(10), SplitByWorker(), SplitItself(), make, make_shard]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("num_shards", [1, 3, 4, 11])
def test_shards_hold_each_item_once(source, num_shards):
    sharded = Sharded(source)
    for epoch in range(2):
        shards = [sharded.open(index, num_shards, epoch).take(99) for index in range(num_shards)]
        assert sorted(item for shard in shards for item in shard) == list(range(10))
        assert shards[0] == list(range(0, 10, num_shards))


def test_only_what_splits_itself_says_so():
    assert [Sharded(source).splits_itself for source in SOURCES] == [False, False, False, True, False, True]


def test_a_shard_is_read_in_pieces():
    shard = Sharded(range(7)).open(1, 2, 0)
    assert [shard.take(2), shard.take(2), shard.take(2)] == [[1, 3], [5], []]
    assert shard.num_read == 3


def test_the_epoch_reaches_the_source():
    class Shuffled(list):
        def set_epoch(self, epoch):
            self[:] = [epoch, epoch + 1]

    assert Sharded(Shuffled()).open(0, 1, 7).take(9) == [7, 8]


def test_the_epoch_reaches_what_shard_gives():
    class Whole(list):
        """Its parts begin at epoch 0, as Hugging Face's do, whatever the whole was told."""

        epoch = 0

        def set_epoch(self, epoch):
            self.epoch = epoch

        def shard(self, num_shards, index):
            return Whole(self[index::num_shards])

        def __iter__(self):
            return (item + self.epoch for item in super().__iter__())

    sharded = Sharded(Whole([10, 20, 30]))
    assert [sharded.open(1, 2, epoch).take(9) for epoch in (0, 7)] == [[20], [27]]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (make(), "a range_iterator can be read once only"),
        (TensorDataset(torch.arange(3)), "TensorDataset is no iterable data set"),
        ("text", "str is no iterable data set"),
        (7, "int is no iterable data set"),
    ],
)
def test_what_is_no_source(source, said):
    with pytest.raises(InputError, match=said):
        Sharded(source)


@pytest.fixture
def urls(tmp_path):
    wds = pytest.importorskip("webdataset")
    for number in range(4):
        with wds.TarWriter(str(tmp_path / f"{number}.tar")) as tar:
            for item in range(3):
                tar.write({"__key__": f"{number}-{item}", "cls": number * 3 + item})
    return [str(tmp_path / f"{number}.tar") for number in range(4)]


def test_webdataset_pipelines(urls, monkeypatch):
    import webdataset as wds

    monkeypatch.setenv("RANK", "17")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    pipeline = wds.WebDataset(urls, shardshuffle=False, nodesplitter=wds.split_by_node).decode()
    sharded = Sharded(pipeline.to_tuple("cls"))
    assert sharded.splits_itself
    shards = [sharded.open(index, 4, 0).take(9) for index in range(4)]
    assert [[item for (item,) in shard] for shard in shards] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert os.environ["RANK"] == "17"
    assert "WORLD_SIZE" not in os.environ
    whole = Sharded(wds.WebDataset(urls, shardshuffle=False))
    with pytest.raises(ValueError, match="nodesplitter"):
        whole.open(0, 2, 0).take(1)

"""Whether a loader's first batch is there is known without waiting for it."""

import multiprocessing
import time

import pytest
import torch

from hvdtrain.data.loader import PartitionLoader
from hvdtrain.data.partition import Partition


class Gated(torch.utils.data.Dataset):
    """Gives no sample before its gate opens."""

    def __init__(self):
        self.gate = multiprocessing.Event()

    def __len__(self):
        return 12

    def __getitem__(self, index):
        self.gate.wait()
        return index


@pytest.fixture
def gated():
    data = Gated()
    with PartitionLoader(data, Partition(12, 1, 4), 0, workers=2) as loader:
        yield data, loader


def wait_for_first(loader):
    deadline = time.monotonic() + 60
    while not loader.has_first:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_is_there_once_a_worker_has_read_it(gated):
    data, loader = gated
    for epoch in range(2):
        data.gate.clear()
        batches = loader.batches(epoch)
        assert not loader.has_first
        data.gate.set()
        wait_for_first(loader)
        assert len(list(batches)) == 3


def test_of_an_epoch_without_more_batches_nothing_is_waited_for(gated):
    _, loader = gated
    assert list(loader.batches(0, 12)) == []
    assert loader.has_first


def test_a_worker_that_died_is_not_waited_for(gated):
    _, loader = gated
    loader.batches(0)
    assert not loader.has_first
    for process in multiprocessing.active_children():
        process.kill()
    wait_for_first(loader)


def test_a_rank_that_reads_itself_waits_for_nobody():
    with PartitionLoader(Gated(), Partition(12, 1, 4), 0) as loader:
        loader.batches(0)
        assert loader.has_first

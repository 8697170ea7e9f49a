"""How fast a loader is alone."""

import time

import pytest
import torch
from torch.utils.data import TensorDataset

from hvdtrain.data.loader import PartitionLoader
from hvdtrain.data.partition import Partition
from hvdtrain.measure.profile_loader import pour


class Slow(TensorDataset):
    """5 ms of sleep a sample: at most 200 samples/s."""

    def __getitem__(self, index):
        time.sleep(0.005)
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_slow_data_set_gives(workers):
    with PartitionLoader(
        Slow(torch.zeros(12, 3)), Partition(12, 1, global_batch=4), 0, workers=workers
    ) as loader:
        found = pour(loader, workers, limit_s=0.3)
    assert 0 < found.samples_per_s <= 200
    assert found.cpu_s_per_sample >= 0


def test_a_data_set_in_memory_ends_with_its_batches():
    loader = PartitionLoader(TensorDataset(torch.zeros(64, 3)), Partition(64, 1, global_batch=8), 0)
    began_s = time.monotonic()
    assert pour(loader, 0, limit_s=600).samples_per_s > 0
    assert time.monotonic() - began_s < 300  # far below the limit

"""What is told of how a job's data is cut into steps."""

import pytest

from hvdtrain.data.partition import Partition
from hvdtrain.train.loading import batch_notes


@pytest.mark.parametrize("batch", [8, 24])
def test_a_batch_that_the_data_fills_needs_no_word(batch):
    assert batch_notes(Partition(24, 2, global_batch=batch)) == []


@pytest.mark.parametrize("tail", ["weight", "pad"])
def test_a_batch_larger_than_the_data_is_told(tail):
    partition = Partition(24, 2, global_batch=32, tail=tail)
    assert batch_notes(partition) == [
        "the global batch of 32 is larger than the data set of 24: one step per epoch"
    ]
    assert partition.num_steps() == 1

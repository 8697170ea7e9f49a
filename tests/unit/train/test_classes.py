"""Labels that are none are told as such, not as a fault of PyTorch's."""

import pytest
import torch

from hvdtrain.errors import InputError
from hvdtrain.train.classes import classify

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ([0, 7], "label 7, and the model gives scores for 3 classes; legal: labels from 0 to 2"),
        ([0, -1], "label -1,"),
        ([1.0, 2.0], "label 1 of type float32; legal: whole numbers"),
    ],
)
def test_a_label_that_is_no_class_is_named(labels, told):
    with pytest.raises(InputError, match=told):
        classify(torch.zeros(2, 3), torch.tensor(labels), CPU)

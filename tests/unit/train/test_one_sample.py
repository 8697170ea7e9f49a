"""Which batch norms one sample is too little for."""

import pytest
import torch
from torch import nn

from hvdtrain.config import ModelConfig
from hvdtrain.train.models import build_model
from hvdtrain.train.one_sample import one_value_layers


@pytest.mark.parametrize(("side", "count"), [(64, 0), (32, 5)])
def test_a_resnet_needs_two_samples_only_where_its_last_maps_are_one_pixel(side, count):
    sample = torch.zeros(3, side, side)
    model = build_model(ModelConfig(name="resnet18"), 10, sample)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    layers = one_value_layers(model, sample)
    assert len(layers) == count
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    if count:
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            model(sample.unsqueeze(0))
    else:
        model(sample.unsqueeze(0))


def test_frozen_norms_and_inputs_that_are_no_tensors_are_left_alone():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    assert one_value_layers(model, torch.zeros(4)) == ["1"]
    assert one_value_layers(model, None) == []
    model[1].eval()
    assert one_value_layers(model, torch.zeros(4)) == []
    assert not model[1].training
    assert model.training

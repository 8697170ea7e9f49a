"""Models by name, and what is told of those that do not fit."""

import pytest
import torch

from hvdtrain.config import ModelConfig
from hvdtrain.errors import InputError
from hvdtrain.train.models import build_model, torchvision_command


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "parameters"),
    # He et al. 2015; the counts are those of the usual implementation with 1000 classes.
    [("resnet18", 11_689_512), ("resnet34", 21_797_672), ("resnet50", 25_557_032)],
)
def test_resnets_have_the_published_size(name, parameters):
    assert count(build_model(ModelConfig(name=name), 1000, torch.zeros(3, 64, 64))) == parameters


def test_digits_cnn_takes_its_width():
    model = build_model(ModelConfig(name="digits_cnn", args={"width": 4}), 10, torch.zeros(1, 8, 8))
    assert model(torch.zeros(5, 1, 8, 8)).shape == (5, 10)
    assert count(model) < 3000


def test_a_model_stays_in_the_mode_that_it_was_built_in():
    assert build_model(ModelConfig(name="digits_cnn"), 10, torch.zeros(1, 8, 8)).training


@pytest.mark.parametrize(
    ("config", "classes", "shape", "message"),
    [
        ({"name": "resnet19"}, 10, (3, 32, 32), "unknown model 'resnet19'.*did you mean 'resnet1"),
        ({"name": "digits_cnn"}, None, (1, 8, 8), r"number of classes.*model\.args\.num_classes"),
        ({"name": "digits_cnn", "args": {"depth": 3}}, 10, (1, 8, 8), "depth"),
        ({"name": "digits_cnn"}, 10, (1, 1, 1), "does not take samples of shape"),
        ({"name": "builtins:dict"}, 10, (1, 8, 8), "'dict', not a torch.nn.Module"),
        (
            {"name": "torch.nn:Flatten"},
            10,
            (1, 8, 8),
            r"outputs of shape \(1, 64\).*legal: a tensor of shape \(1, 10\)",
        ),
    ],
)
def test_refusals(config, classes, shape, message):
    with pytest.raises(InputError, match=message):
        build_model(ModelConfig(**config), classes, torch.zeros(shape))


def test_torchvision_is_named_when_it_is_missing():
    with pytest.raises(InputError, match="torchvision"):
        build_model(ModelConfig(name="torchvision:no_such_net"), 10, torch.zeros(3, 32, 32))


@pytest.mark.parametrize(
    ("torch_version", "words"),
    # The first three stand in the table of torchvision's README.
    [
        ("2.4.1", "torchvision==0.19.1"),
        ("2.7.0+cu126", "torchvision==0.22.0 --index-url https://download.pytorch.org/whl/cu126"),
        ("2.5.0+cpu", "torchvision==0.20.0 --index-url https://download.pytorch.org/whl/cpu"),
        ("2.13.0", "torchvision==0.28.0"),
        ("3.0.0", "torchvision"),
    ],
)
def test_torchvision_is_installed_without_replacing_torch(torch_version, words):
    assert torchvision_command(torch_version) == f"pip install --no-deps {words}"

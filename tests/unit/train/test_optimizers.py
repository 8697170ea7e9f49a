"""From a job's optimizer section to the optimizer and its groups."""

import pytest
import torch

from hvdtrain.config import OptimizerConfig
from hvdtrain.errors import InputError
from hvdtrain.train.large_batch import Lamb, Lars
from hvdtrain.train.optimizers import build_optimizer


def network():
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))


def build(model=None, **options):
    return build_optimizer(OptimizerConfig(**options), model or network())


@pytest.mark.parametrize(
    ("options", "kind", "settings"),
    [
        (
            {"name": "sgd", "momentum": 0.9, "nesterov": True},
            torch.optim.SGD,
            {"momentum": 0.9, "nesterov": True},
        ),
        ({"name": "adam", "betas": (0.8, 0.9)}, torch.optim.Adam, {"betas": (0.8, 0.9), "eps": 1e-8}),
        ({"name": "adamw", "eps": 1e-5}, torch.optim.AdamW, {"eps": 1e-5}),
        (
            {"name": "lars", "momentum": 0.9, "trust_coefficient": 0.02},
            Lars,
            {"momentum": 0.9, "trust_coefficient": 0.02, "eps": 1e-8, "exclude_1d": True},
        ),
        ({"name": "lamb", "exclude_1d": False}, Lamb, {"eps": 1e-6, "exclude_1d": False}),
    ],
)
def test_every_option_arrives(options, kind, settings):
    optimizer = build(lr=0.25, weight_decay=0.125, **options)
    assert type(optimizer) is kind
    (group,) = optimizer.param_groups
    assert {"lr": 0.25, "weight_decay": 0.125, **settings}.items() <= group.items()
    assert len(group["params"]) == 6


def test_defaults_are_torchs():
    (ours,), (theirs,) = build().param_groups, torch.optim.Adam(network().parameters()).param_groups
    assert {**ours, "params": None} == {**theirs, "params": None}


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_biases_and_norms_without_decay(name):
    model = network()
    groups = build(model, name=name, lr=0.1, weight_decay=0.5, exclude_1d=True).param_groups
    assert [group["weight_decay"] for group in groups] == [0.5, 0.0]
    assert [[tuple(parameter.shape) for parameter in group["params"]] for group in groups] == [
        [(3, 4), (2, 3)],
        [(3,), (3,), (3,), (2,)],
    ]
    assert [group["lr"] for group in groups] == [0.1, 0.1]


def test_decay_spares_what_is_excluded():
    model = network()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = build(model, name="sgd", lr=0.1, weight_decay=0.5, exclude_1d=True)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for old, new in zip(before, model.parameters(), strict=True):
        assert torch.allclose(new, old * 0.95 if old.ndim > 1 else old)


def test_frozen_parameters_are_left_out():
    model = network()
    model[0].requires_grad_(False)
    assert sum(len(group["params"]) for group in build(model, exclude_1d=True).param_groups) == 4
    model.requires_grad_(False)
    with pytest.raises(InputError, match="model: the model has no parameter to train"):
        build(model)


def test_no_group_is_empty():
    assert len(build(torch.nn.LayerNorm(3), exclude_1d=True).param_groups) == 1
    assert len(build(torch.nn.Linear(3, 2, bias=False), exclude_1d=True).param_groups) == 1

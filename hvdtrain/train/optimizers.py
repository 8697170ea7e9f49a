"""From the section ``optimizer`` of a job to an optimizer over a model's parameters."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from hvdtrain.config import OptimizerConfig
from hvdtrain.errors import InputError
from hvdtrain.train.large_batch import Lamb, Lars

_ADAM_LIKE: dict[str, type[Optimizer]] = {"adam": Adam, "adamw": AdamW, "lamb": Lamb}


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> Optimizer:
    """The optimizer of a job, over the parameters of a model that are not frozen.

    Its rate is ``config.lr`` until the schedule sets another one.

    Raises:
        InputError: The model has no parameter to train.
    """
    options: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    if config.eps is not None:
        options["eps"] = config.eps
    if config.name in ("lars", "lamb"):
        # These two tell the parameters apart themselves.
        options["exclude_1d"] = config.excludes_1d
        groups = parameter_groups(model, split=False)
    else:
        groups = parameter_groups(model, split=config.excludes_1d)
    if config.name == "sgd":
        return SGD(groups, momentum=config.momentum, nesterov=config.nesterov, **options)
    if config.name == "lars":
        return Lars(groups, momentum=config.momentum, trust_coefficient=config.trust_coefficient, **options)
    return _ADAM_LIKE[config.name](groups, betas=config.betas, **options)  # type: ignore[call-arg]


def parameter_groups(model: nn.Module, *, split: bool) -> list[dict[str, Any]]:
    """A model's trainable parameters as an optimizer's groups, in their own order.

    Args:
        model: The model.
        split: Put parameters of at most one dimension (biases, norms) into a group of their own,
            after the others, whose weight decay is 0.

    Raises:
        InputError: There is none.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise InputError("the model has no parameter to train", where="model")
    if not split:
        return [{"params": trainable}]
    matrices = [parameter for parameter in trainable if parameter.ndim > 1]
    vectors = [parameter for parameter in trainable if parameter.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]

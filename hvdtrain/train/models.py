"""Models by name: a small network for digits, ResNets, torchvision's, and the user's own.

The ResNets follow He et al. 2015 (arXiv:1512.03385) with the stride of a bottleneck in its
3x3 convolution, as is usual since; ResNet-50 has 25.6 M parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from hvdtrain.config import ModelConfig
from hvdtrain.data.factory import call_factory, import_factory
from hvdtrain.errors import InputError


class DigitsCnn(nn.Module):
    """Two convolutions and two linear layers for images of 8x8; no layer depends on the batch.

    Shapes: input (N, channels, 8, 8), output (N, num_classes).
    """

    def __init__(self, num_classes: int = 10, channels: int = 1, width: int = 32) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.LazyLinear(4 * width), nn.ReLU(), nn.Linear(4 * width, num_classes)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        return torch.as_tensor(self.classifier(self.features(images)))


class _Block(nn.Module):
    """A residual block: two 3x3 convolutions, or 1x1, 3x3, 1x1 with ``expansion`` 4."""

    def __init__(self, channels_in: int, channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        channels_out = channels * expansion
        if expansion == 1:
            shapes = [(channels_in, channels, 3, stride), (channels, channels, 3, 1)]
        else:
            shapes = [
                (channels_in, channels, 1, 1),
                (channels, channels, 3, stride),
                (channels, channels_out, 1, 1),
            ]
        layers: list[nn.Module] = []
        for source, target, kernel, step in shapes:
            layers += [_conv(source, target, kernel, step), nn.BatchNorm2d(target), nn.ReLU(inplace=True)]
        self.residual = nn.Sequential(*layers[:-1])
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                _conv(channels_in, channels_out, 1, stride), nn.BatchNorm2d(channels_out)
            )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The inputs with their residual added."""
        return torch.relu(self.residual(inputs) + self.shortcut(inputs))


class ResNet(nn.Module):
    """A residual network for images of about 224x224.

    Shapes: input (N, channels, H, W), output (N, num_classes).
    """

    def __init__(self, depths: tuple[int, ...], expansion: int, num_classes: int, channels: int = 3) -> None:
        super().__init__()
        stem = [_conv(channels, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
        stages: list[nn.Module] = [*stem, nn.MaxPool2d(3, stride=2, padding=1)]
        width_in = 64
        for stage, depth in enumerate(depths):
            width = 64 << stage
            for block in range(depth):
                stride = 2 if block == 0 and stage > 0 else 1
                stages.append(_Block(width_in, width, stride, expansion))
                width_in = width * expansion
        self.features = nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(width_in, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        return torch.as_tensor(self.classifier(self.features(images)))


def _conv(channels_in: int, channels_out: int, kernel: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, kernel, stride, padding=kernel // 2, bias=False)


def _resnet(depths: tuple[int, ...], expansion: int) -> Callable[..., nn.Module]:
    def build(num_classes: int, channels: int = 3) -> nn.Module:
        return ResNet(depths, expansion, num_classes, channels)

    return build


_NAMED: dict[str, Callable[..., nn.Module]] = {
    "digits_cnn": DigitsCnn,
    "resnet18": _resnet((2, 2, 2, 2), 1),
    "resnet34": _resnet((3, 4, 6, 3), 1),
    "resnet50": _resnet((3, 4, 6, 3), 4),
}
_LEGAL = ", ".join(_NAMED) + ", torchvision:NAME, package.module:factory"


def build_model(config: ModelConfig, num_classes: int | None, sample: torch.Tensor | None) -> nn.Module:
    """Builds a model on the CPU and runs one sample through it.

    Args:
        config: The job's ``model`` section.
        num_classes: Classes of the data, None where a factory of the user's does not tell.
        sample: A real input, without the batch dimension; None where inputs are no tensors.

    Raises:
        InputError: No such model, it cannot be built, or it does not take the data.
    """
    model = _create(config, num_classes, None if sample is None else sample.shape)
    if not isinstance(model, nn.Module):
        raise InputError(
            f"model {config.name!r} gives {type(model).__name__!r}, not a torch.nn.Module", where="model.name"
        )
    if sample is not None:
        _try_one_sample(model, config.name, num_classes, sample)
    return model


def _create(config: ModelConfig, num_classes: int | None, sample_shape: tuple[int, ...] | None) -> Any:
    name, args = config.name, dict(config.args)
    if name in _NAMED or name.startswith("torchvision:"):
        args.setdefault("num_classes", num_classes)
        if args["num_classes"] is None:
            raise InputError(
                "the data does not tell its number of classes", where="model", do="set model.args.num_classes"
            )
    if name in _NAMED:
        args.setdefault("channels", sample_shape[0] if sample_shape else 3)
        return call_factory(_NAMED[name], args, spec=name, where="model.args")
    if name.startswith("torchvision:"):
        factory = _torchvision(name.removeprefix("torchvision:"))
        return call_factory(factory, {"weights": None, **args}, spec=name, where="model.args")
    if ":" in name:
        return call_factory(import_factory(name, where="model.name"), args, spec=name, where="model.args")
    close = get_close_matches(name, _NAMED, n=1)
    hint = f"did you mean {close[0]!r}?" if close else ""
    raise InputError(f"unknown model {name!r}", where="model.name", legal=_LEGAL, do=hint)


def _torchvision(name: str) -> Callable[..., Any]:
    if find_spec("torchvision") is None:
        raise InputError(
            "torchvision is not installed",
            where="model.name",
            do=f"{torchvision_command(version('torch'))} (the one for this PyTorch, which stays as it is)",
        )
    try:
        models = import_module("torchvision.models")
    except Exception as error:  # built for another PyTorch, it fails in ways of its own
        raise InputError(
            f"torchvision {version('torchvision')} does not work with PyTorch {version('torch')}: {error}",
            where="model.name",
            do=torchvision_command(version("torch")),
        ) from None
    legal = models.list_models(module=models)
    if name not in legal:
        close = get_close_matches(name, legal, n=1)
        raise InputError(
            f"torchvision has no model {name!r}",
            where="model.name",
            do=f"did you mean {close[0]!r}?" if close else "see torchvision.models",
        )
    return getattr(models, name)  # type: ignore[no-any-return]


def torchvision_command(torch_version: str) -> str:
    """How to install the torchvision that belongs to a PyTorch without replacing that PyTorch.

    Args:
        torch_version: As the package states it, ``2.13.0+cpu`` where it came from PyTorch's own index.
            Releases go in step: torchvision 0.(N+15) for PyTorch 2.N (torchvision's README).
    """
    release, _, build = torch_version.partition("+")
    major, minor, patch = (*release.split("."), "0")[:3]
    number = f"0.{int(minor) + 15}.{patch}" if (major, minor.isdecimal()) == ("2", True) else ""
    package = f"torchvision=={number}" if number else "torchvision"
    index = f" --index-url https://download.pytorch.org/whl/{build}" if build else ""
    return f"pip install --no-deps {package}{index}"


def leaves_gradients_out(model: nn.Module, sample: torch.Tensor | None) -> bool:
    """Whether a backward pass of one sample leaves a trainable parameter without a gradient.

    Where nothing can be tried the answer is yes: an engine that then looks for them loses a
    little time, one that does not would stop.
    """
    if sample is None:
        return True
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    model(sample.unsqueeze(0).to(device)).sum().backward()
    missing = any(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    model.zero_grad(set_to_none=True)
    model.train(training)
    return missing


def _try_one_sample(model: nn.Module, name: str, num_classes: int | None, sample: torch.Tensor) -> None:
    """One sample through the model: materialises lazy layers, finds a model that does not fit."""
    training = model.training
    model.eval()
    shape = tuple(sample.shape)
    try:
        with torch.no_grad():
            outputs = model(sample.unsqueeze(0))
    except Exception as error:
        raise InputError(
            f"model {name!r} does not take samples of shape {shape} and type {sample.dtype}: {error}",
            where="model",
        ) from error
    model.train(training)
    found = tuple(getattr(outputs, "shape", ()))
    if len(found) != 2 or (num_classes is not None and found[1] != num_classes):
        legal = f"a tensor of shape (1, {num_classes or 'classes'})"
        raise InputError(
            f"model {name!r} gives {_kind(outputs)} for one sample of shape {shape}",
            where="model",
            legal=legal,
        )


def _kind(outputs: Any) -> str:
    if isinstance(outputs, torch.Tensor):
        return f"outputs of shape {tuple(outputs.shape)}"
    return f"outputs of type {type(outputs).__name__}"

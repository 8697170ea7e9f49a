"""Batch norm over the batch of all ranks, on every engine and device.

PyTorch's and Horovod's own take GPU tensors only, and neither takes a rank without samples.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from hvdtrain.backends.base import Backend


class SyncBatchNorm(_BatchNorm):
    """Normalises each channel with the mean and the biased variance over all ranks' samples.

    Inputs have shape (N, C, ...) with N of its own on each rank, also without samples (``Aside``).
    Running statistics are those of all ranks, so they stay equal on all ranks. In evaluation it is an
    ordinary batch norm. Two sums a pass forward, two backward.
    """

    def __init__(self, template: _BatchNorm, backend: Backend, name: str) -> None:
        super().__init__(
            template.num_features,
            template.eps,
            template.momentum,
            template.affine,
            template.track_running_stats,
        )
        # The template's own tensors: an optimizer that was made before goes on with them.
        for kind in ("_parameters", "_buffers"):
            getattr(self, kind).update(getattr(template, kind))
        self.train(template.training)
        self.is_empty = False
        self._backend, self._name = backend, name

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002 - as PyTorch names it
        if input.dim() < 2:
            raise ValueError(f"batch norm needs inputs of at least 2 dimensions, found {input.dim()}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """The normalised input; collective in training."""
        if not (self.training or self.is_empty) or self._backend.size == 1:
            return super().forward(input)
        self._check_input_dim(input)
        values = input if input.dtype == torch.float64 else input.float()
        others = [dimension for dimension in range(input.dim()) if dimension != 1]
        shape = [1, -1, *[1] * (input.dim() - 2)]
        share = 0.0 if self.is_empty else 1.0
        held = torch.tensor([share * values.numel() / values.shape[1]], device=values.device)
        sums = self._sum(torch.cat([values.sum(others) * share, held]), "sum")
        count = sums[-1].detach()
        mean = sums[:-1] / count.clamp(min=1)
        centred = values - mean.reshape(shape)
        variance = self._sum((centred**2).sum(others) * share, "squares") / count.clamp(min=1)
        if count > 1:
            self._track(mean.detach(), variance.detach(), count)
        normalised = centred * torch.rsqrt(variance + self.eps).reshape(shape)
        if self.affine:
            normalised = normalised * self.weight.reshape(shape) + self.bias.reshape(shape)
        return normalised.to(input.dtype)

    def _sum(self, values: torch.Tensor, what: str) -> torch.Tensor:
        summed: torch.Tensor = _SumOverRanks.apply(values, self._backend, f"{self._name}.{what}")  # type: ignore[no-untyped-call]
        return summed

    def _track(self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        """Running statistics as PyTorch keeps them: of the unbiased variance."""
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(variance * count / (count - 1), momentum)


class _SumOverRanks(torch.autograd.Function):
    """A sum over ranks, whose gradient is the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, backend: Backend, name: str) -> torch.Tensor:
        ctx.backend, ctx.name = backend, name
        return backend.sum(values.detach().contiguous(), name)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.backend.sum(gradients[0].contiguous(), f"{ctx.name}.gradient"), None, None


def synchronise_batchnorm(model: nn.Module, backend: Backend) -> nn.Module:
    """Puts a ``SyncBatchNorm`` in the place of each batch norm; the same model on all ranks."""
    if isinstance(model, _BatchNorm):
        return SyncBatchNorm(model, backend, "batchnorm")
    for name, part in list(model.named_modules()):
        for child_name, child in list(part.named_children()):
            if isinstance(child, _BatchNorm) and not isinstance(child, SyncBatchNorm):
                setattr(part, child_name, SyncBatchNorm(child, backend, f"batchnorm.{name}.{child_name}"))
    return model


def synchronised_layers(model: nn.Module) -> list[SyncBatchNorm]:
    """The layers of a model that take part in collectives during its passes."""
    return [part for part in model.modules() if isinstance(part, SyncBatchNorm)]


class Aside:
    """Models whose next passes are of samples that do not count.

    Only while they compute they are in evaluation mode, so that running statistics and random streams stay
    untouched; layers that normalise over all ranks take part in the others' pass without a sample of their
    own. A model that is in evaluation mode anyway is left alone: it is not being trained.
    """

    def __init__(self) -> None:
        self._hooks: list[RemovableHandle] = []
        self._modes: list[tuple[nn.Module, bool]] = []
        self._layers: list[SyncBatchNorm] = []

    def add(self, model: nn.Module) -> None:
        """Sets a model aside until ``end``."""
        self._hooks.append(model.register_forward_pre_hook(self._enter))
        self._hooks.append(model.register_forward_hook(self._leave, always_call=True))

    def end(self) -> None:
        """Its next passes count again."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _enter(self, model: nn.Module, _inputs: Any) -> None:
        if not model.training:
            return
        # A part of the model may be in another mode than the whole: frozen batch norms are.
        self._modes += [(part, part.training) for part in model.modules()]
        layers = [layer for layer in synchronised_layers(model) if layer.training]
        model.eval()
        for layer in layers:
            layer.is_empty = True
        self._layers += layers

    def _leave(self, _model: nn.Module, _inputs: Any, _outputs: Any) -> None:
        for part, mode in self._modes:
            part.training = mode
        for layer in self._layers:
            layer.is_empty = False
        self._modes, self._layers = [], []

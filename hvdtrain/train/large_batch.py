"""LARS and LAMB: each layer moves in proportion to the size of its weights.

With large batches one rate for all layers is too high for some long before it is high enough for
the others. Both papers scale a layer's step by the norm of its weights over the norm of its update.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from hvdtrain.errors import InputError, TrainingError

Parameters = Iterable[torch.Tensor] | Iterable[dict[str, Any]]
Group = dict[str, Any]


class LayerwiseOptimizer(Optimizer):
    """What LARS and LAMB share: the walk over the layers. A layer is one parameter tensor."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Moves every parameter that has a gradient.

        Args:
            closure: Computes the loss and its gradients anew; called once, before anything moves.

        Returns:
            What the closure returned.

        Raises:
            TrainingError: A gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter.grad.is_sparse:
                    raise TrainingError(f"{type(self).__name__} does not take sparse gradients")
                self._move(parameter, group)
        return loss

    @abstractmethod
    def _move(self, parameter: torch.Tensor, group: Group) -> None:
        """Moves one layer by its gradient."""


class Lars(LayerwiseOptimizer):
    """SGD with momentum and a rate per layer (You, Gitman, Ginsburg 2017, arXiv:1708.03888).

    For a layer of weights w with gradient g, weight decay b, momentum m and trust coefficient c::

        ratio = c |w| / (|g| + b |w| + eps)
        v     = m v + lr * ratio * (g + b w)
        w     = w - v

    with 2-norms. As in the paper's algorithm 1 the rate stands inside the velocity v, not before it
    as in ``torch.optim.SGD``: a new rate acts on new gradients only. Where |w| or |g| is zero, the
    ratio is 1: a layer that starts at zero could not move otherwise.

    Args:
        params: Parameters, or groups of them.
        lr: Rate; of the order of 1 to 10, since the ratio is of the order of 1e-3 to 1e-2.
        momentum: m, in [0, 1); the paper uses 0.9.
        weight_decay: b.
        trust_coefficient: c; 0.001 in the paper.
        eps: Keeps the denominator above zero; the paper has none.
        exclude_1d: Give parameters of at most one dimension (biases, norms) ratio 1 and no weight
            decay, as is usual; a group may say otherwise.

    Raises:
        InputError: A value is out of range.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1.0,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        eps: float = 1e-8,
        exclude_1d: bool = True,
    ) -> None:
        options = {"lr": lr, "weight_decay": weight_decay, "trust_coefficient": trust_coefficient, "eps": eps}
        _check("Lars", options, {"momentum": momentum})
        super().__init__(params, {**options, "momentum": momentum, "exclude_1d": exclude_1d})

    def _move(self, parameter: torch.Tensor, group: Group) -> None:
        excluded = _is_excluded(parameter, group)
        decay = 0.0 if excluded else group["weight_decay"]
        gradient = parameter.grad
        assert gradient is not None
        update = gradient.add(parameter, alpha=decay) if decay else gradient.clone()
        update.mul_(group["lr"])
        if not excluded:
            size, slope = torch.linalg.vector_norm(parameter), torch.linalg.vector_norm(gradient)
            scaled = group["trust_coefficient"] * size / (slope + decay * size + group["eps"])
            update.mul_(_or_one(scaled, size, slope))
        if group["momentum"]:
            state = self.state[parameter]
            if "momentum_buffer" in state:
                update = state["momentum_buffer"].mul_(group["momentum"]).add_(update)
            else:
                state["momentum_buffer"] = update
        parameter.sub_(update)


class Lamb(LayerwiseOptimizer):
    """Adam with a rate per layer (You et al. 2019, arXiv:1904.00962, algorithm 2).

    For a layer of weights w with gradient g and weight decay d, in step t from 1::

        m = beta1 m + (1 - beta1) g
        v = beta2 v + (1 - beta2) g^2
        u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + d w
        w = w - lr * |w| / |u| * u

    with 2-norms and the paper's function phi the identity. Where |w| or |u| is zero, their ratio
    is taken as 1: a layer that starts at zero could not move otherwise.

    Args:
        params: Parameters, or groups of them.
        lr: Rate.
        betas: beta1 and beta2, in [0, 1).
        eps: Keeps the denominator above zero; 1e-6 in the paper.
        weight_decay: d; the paper uses 0.01.
        exclude_1d: Give parameters of at most one dimension (biases, norms) ratio 1 and no weight
            decay, as is usual; a group may say otherwise.

    Raises:
        InputError: A value is out of range.
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 0.001,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        exclude_1d: bool = True,
    ) -> None:
        options = {"lr": lr, "weight_decay": weight_decay, "eps": eps}
        _check("Lamb", options, {"betas[0]": betas[0], "betas[1]": betas[1]})
        super().__init__(params, {**options, "betas": betas, "exclude_1d": exclude_1d})

    def _move(self, parameter: torch.Tensor, group: Group) -> None:
        excluded = _is_excluded(parameter, group)
        state = self.state[parameter]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
        state["step"] += 1
        update = _adam_direction(parameter.grad, state, group)
        if group["weight_decay"] and not excluded:
            update.add_(parameter, alpha=group["weight_decay"])
        if not excluded:
            size, length = torch.linalg.vector_norm(parameter), torch.linalg.vector_norm(update)
            update.mul_(_or_one(size / length, size, length))
        parameter.sub_(update, alpha=group["lr"])


def _adam_direction(gradient: torch.Tensor | None, state: dict[str, Any], group: Group) -> torch.Tensor:
    """Adam's step of unit rate, from averages without the bias of their start at zero."""
    assert gradient is not None
    first, second = group["betas"]
    state["exp_avg"].lerp_(gradient, 1 - first)
    state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
    root = (state["exp_avg_sq"] / (1 - second ** state["step"])).sqrt_().add_(group["eps"])
    return torch.div(state["exp_avg"] / (1 - first ** state["step"]), root)


def _is_excluded(parameter: torch.Tensor, group: Group) -> bool:
    return bool(group["exclude_1d"]) and parameter.ndim <= 1


def _or_one(ratio: torch.Tensor, *norms: torch.Tensor) -> torch.Tensor:
    """The ratio, or 1 where a norm is zero; decided on the device, so that no step waits for it."""
    positive = torch.stack(norms).gt(0).all()
    return torch.where(positive, ratio, torch.ones_like(ratio))


def _check(name: str, not_negative: dict[str, float], below_one: dict[str, float]) -> None:
    for key, value in {**not_negative, **below_one}.items():
        limit = 1.0 if key in below_one else math.inf
        if not 0 <= value < limit:
            legal = "0 to below 1" if key in below_one else "a finite number, 0 or more"
            raise InputError(f"{name}: {key} is {value}", legal=legal)

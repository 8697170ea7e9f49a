"""Hears of gradients while a backward pass makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch


def hear_whole_gradients(
    parameters: Iterable[torch.Tensor], heard: Callable[[torch.Tensor], None]
) -> Callable[[], None]:
    """Lets somebody hear of gradients that are whole; returns what ends it.

    A hook that was removed leaves a call behind in each later backward pass, half a microsecond.
    """
    hooks = [
        parameter.register_post_accumulate_grad_hook(heard)  # type: ignore[no-untyped-call]
        for parameter in parameters
    ]

    def end() -> None:
        for hook in hooks:
            hook.remove()

    return end

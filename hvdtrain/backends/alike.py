"""In what the models of two ranks differ, in words."""

from __future__ import annotations

from torch import nn

# A parameter's name, shape, type, and whether it is trained.
Described = tuple[str, tuple[int, ...], str, bool]


def described(model: nn.Module) -> list[Described]:
    """A model's parameters, in its order."""
    return [
        (name, tuple(value.shape), str(value.dtype).removeprefix("torch."), value.requires_grad)
        for name, value in model.named_parameters()
    ]


def first_difference(first: list[Described], own: list[Described]) -> str:
    """In what a rank's model first differs from rank 0's; they do differ."""
    for there, here in zip(first, own, strict=False):
        if there != here:
            return f"it has {_words(here)} where rank 0 has {_words(there)}"
    more, of_whom = (own, "only it has") if len(own) > len(first) else (first, "it lacks")
    return f"{of_whom} {_words(more[min(len(own), len(first))])}"


def _words(parameter: Described) -> str:
    name, shape, kind, is_trained = parameter
    return f"parameter {name!r} of shape {shape}, {kind}{'' if is_trained else ', frozen'}"

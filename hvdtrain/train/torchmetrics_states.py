"""Metrics of torchmetrics: their states are reduced by our engine, then they compute as alone.

torchmetrics itself is not imported here. What is used of its objects is what its ``Metric`` states
for synchronisation: ``update``, ``compute``, ``reset`` and, per state, the function that
``add_state`` was given as ``dist_reduce_fx`` (``_reductions``).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch

from hvdtrain.backends.base import Backend
from hvdtrain.errors import InputError
from hvdtrain.train.metrics import Value

_NEEDED = ("update", "compute", "reset", "modules", "_reductions")


class TorchMetric:
    """One object of torchmetrics among our metrics.

    States that are sums are added up by the engine; all others are gathered in the order of the
    ranks and reduced by the state's own function, ranks that had no batch left out. torchmetrics'
    own synchronisation is turned off: it would count everything once more.

    A figure is called ``name``; where ``compute`` gives a dictionary, ``name_KEY``. A tensor of
    several values becomes a list.

    Args:
        name: In the results.
        metric: A ``torchmetrics.Metric`` on the CPU; not a ``MetricCollection``.

    Raises:
        InputError: The object is no such metric.
    """

    def __init__(self, name: str, metric: Any) -> None:
        if any(not hasattr(metric, needed) for needed in _NEEDED):
            raise InputError(
                f"metric {name!r} is a {type(metric).__name__}, not a torchmetrics.Metric",
                do="give the metrics of a collection one by one",
            )
        self.name = name
        self._metric = metric

    def reset(self) -> None:
        """Begins anew."""
        self._metric.reset()

    def update(
        self, outputs: torch.Tensor, targets: torch.Tensor, counted: torch.Tensor | None = None
    ) -> None:
        """Adds a batch of this rank's samples; see ``Metric.update``."""
        outputs, targets = outputs.detach().to("cpu"), targets.detach().to("cpu")
        if counted is not None:
            kept = counted.to("cpu", torch.bool)
            outputs, targets = outputs[kept], targets[kept]
        if len(targets):
            self._metric.update(outputs, targets)

    def reduced(self, backend: Backend) -> dict[str, Value]:
        """What ``compute`` gives over all ranks' samples; see ``Metric.reduced``."""
        merged = copy.deepcopy(self._metric)
        parts = _parts(merged)
        mine = [
            (part._update_count, {state: _form(getattr(part, state)) for state in part._reductions})
            for part in parts
        ]
        told = backend.gather(mine)
        for at, part in enumerate(parts):
            _merge(part, [theirs[at] for theirs in told], backend, f"metric.{self.name}.{at}")
        if not any(part._update_count for part in parts):
            return {self.name: float("nan")}
        for module in merged.modules():
            module._computed, module._to_sync = None, False
        return _named(self.name, merged.compute())


def _parts(metric: Any) -> list[Any]:
    """Of the metric and those that it wraps the ones that hold states, each once.

    A wrapper may show the states of what it wraps as its own (``ClasswiseWrapper``): the inner one
    comes later in ``modules()``, and is the one that counts its updates.
    """
    holders = [part for part in metric.modules() if getattr(part, "_reductions", None)]
    return list({id(part._reductions): part for part in holders}.values())


def _form(state: Any) -> tuple[Any, ...]:
    """What must be equal on two ranks for their states to be added."""
    return (tuple(state.shape), str(state.dtype)) if isinstance(state, torch.Tensor) else ("list",)


def _merge(part: Any, told: list[tuple[int, dict[str, Any]]], backend: Backend, name: str) -> None:
    """Gives one metric the states of all ranks; ``told`` are the ranks' batches and forms of states."""
    gathered = []
    for state, reduction in part._reductions.items():
        forms = {forms[state] for _, forms in told}
        is_sum = getattr(reduction, "__name__", "") == "dim_zero_sum"
        if is_sum and len(forms) == 1 and forms != {("list",)}:
            # Horovod takes no tensor without dimensions.
            value = getattr(part, state)
            total = backend.sum(value.reshape(-1), f"{name}.{state}")
            setattr(part, state, total.reshape(value.shape))
        else:
            gathered.append(state)
    if gathered:
        theirs = backend.gather({state: getattr(part, state) for state in gathered})
        used = [states for states, (count, _) in zip(theirs, told, strict=True) if count]
        for state in gathered if used else ():
            setattr(part, state, _combined([states[state] for states in used], part._reductions[state]))
    part._update_count = sum(count for count, _ in told)


def _combined(values: list[Any], reduction: Any) -> Any:
    """One state of several ranks, as ``torchmetrics.Metric`` itself combines what it gathered."""
    if isinstance(values[0], list):
        together = [tensor for value in values for tensor in value]
        return reduction(together) if reduction is not None and together else together
    if len(values) == 1:
        return values[0]
    stacked = torch.stack(values)
    return stacked if reduction is None else reduction(stacked)


def _named(name: str, result: Any) -> dict[str, Value]:
    if isinstance(result, Mapping):
        return {f"{name}_{key}": _plain(value) for key, value in result.items()}
    return {name: _plain(result)}


def _plain(result: Any) -> Value:
    """A number as it is; several as a list, in which JSON's null stands for what is no number."""
    if isinstance(result, (list, tuple)):
        return [_plain(item) for item in result]
    values = result.tolist() if isinstance(result, torch.Tensor) else result
    return _finite(values) if isinstance(values, list) else float(values)


def _finite(values: Any) -> Any:
    if isinstance(values, list):
        return [_finite(value) for value in values]
    return values if math.isfinite(values) else None

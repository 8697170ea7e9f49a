"""What becomes of gradients between the backward pass and the step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hvdtrain.errors import InputError

# What to do about losses and gradients that are no finite numbers, in a job file and in a script.
CURE = (
    "lower the learning rate or clip the gradients, or leave such steps out "
    '(gradients.on_nan: skip, or on_nan="skip" of run.distribute)'
)


@dataclass(frozen=True)
class StepRules:
    """What becomes of gradients between the backward pass and the step; see the job file's keys.

    Attributes:
        clip_norm: Largest 2-norm of all gradients together, None for no limit.
        clip_value: Largest size of an element, None for no limit.
        on_nan: ``stop`` or ``skip``.
        precision: ``fp32``, ``bf16`` or ``fp16``, of the forward pass.
    """

    clip_norm: float | None = None
    clip_value: float | None = None
    on_nan: str = "stop"
    precision: str = "fp32"

    def check(self) -> None:
        """Refuses what is out of range.

        Raises:
            InputError: With the name of the rule.
        """
        for name in ("clip_norm", "clip_value"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
                raise InputError(f"{name} is {value!r}", legal="a finite number above 0, or None")
        if self.clip_norm is not None and self.clip_value is not None:
            raise InputError("clip_norm and clip_value cannot be combined", do="choose one")
        for name, legal in (("on_nan", ("stop", "skip")), ("precision", ("fp32", "bf16", "fp16"))):
            if getattr(self, name) not in legal:
                raise InputError(f"{name} is {getattr(self, name)!r}", legal=", ".join(legal))

"""What holds for a whole run of a script."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """What holds for a whole run; see ``hvdtrain.start``.

    Attributes:
        seed: Of the order of samples and of random generators.
        accumulate: Passes that make a step.
        precision: Of ``Run.autocast``.
    """

    seed: int = 0
    accumulate: int = 1
    precision: str = "fp32"

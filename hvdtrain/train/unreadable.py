"""The samples that ranks could not read, told once each."""

from __future__ import annotations

from collections.abc import Iterable

from hvdtrain.backends.base import Backend
from hvdtrain.train.observe import Observer


class Unreadable:
    """Names of samples that this rank left out, and of those that were told."""

    def __init__(self) -> None:
        self._found: set[str] = set()
        self._told: set[str] = set()

    def add(self, names: Iterable[str]) -> None:
        """This rank left these out."""
        self._found.update(names)

    def tell(self, backend: Backend, observer: Observer | None) -> None:
        """Names what any rank left out and has not been named before; collective."""
        found = set[str]().union(*backend.gather(self._found))
        new = sorted(found - self._told)
        self._told |= found
        if observer and new:
            plural = "s" if len(new) > 1 else ""
            observer.noted(f"{len(new)} unreadable sample{plural} skipped: {', '.join(new)}")

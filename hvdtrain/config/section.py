"""What the parts of a job file have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    """Base of all parts of a job: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Choice(Section):
    """A section whose ``name`` decides which of its other keys are used; those that are not are errors."""

    # Key -> the names that use it; a key that is not here is used by all of them.
    _users: ClassVar[Mapping[str, frozenset[str]]] = {}

    name: str

    def unused(self) -> list[str]:
        """The keys that are without effect."""
        return sorted(key for key, names in self._users.items() if self.name not in names)

    @model_validator(mode="after")
    def _nothing_unused(self) -> Self:
        if wrong := [key for key in self.unused() if key in self.model_fields_set]:
            raise ValueError(f"{wrong[0]} is not used by {self.name}")
        return self

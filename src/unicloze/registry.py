"""Registry of objectives or tasks by name: the package's own, imported on first use, and those a plugin adds."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from unicloze.errors import UsageError

Thing = TypeVar("Thing")


class Registry(Generic[Thing]):
    """Objectives or tasks by name: the entries of modules, each in the mapping `table` there; messages call one a `kind`."""

    def __init__(self, kind: str, table: str, modules: Mapping[str, str]) -> None:
        self.kind, self.table = kind, table
        self._modules = dict(modules)
        self._added: dict[str, Thing] = {}

    def __iter__(self) -> Iterator[str]:
        return iter([*self._modules, *self._added])

    def __len__(self) -> int:
        return len(self._modules) + len(self._added)

    def __contains__(self, name: object) -> bool:
        return name in self._modules or name in self._added

    def __getitem__(self, name: str) -> Thing:
        """The entry with this name."""
        if name in self._added:
            return self._added[name]
        if name not in self._modules:
            raise UsageError(f"there is no {self.kind} {name!r}; {self.unknown()}")
        found: Thing = getattr(importlib.import_module(self._modules[name]), self.table)[name]
        return found

    def get(self, name: str) -> Thing | None:
        """The entry with this name, or None."""
        if name not in self:
            return None
        return self[name]

    def is_added(self, name: str) -> bool:
        """Whether an entry comes from outside the package."""
        return name in self._added

    def unknown(self) -> str:
        """How to fix an unknown name, as text for a message."""
        return f"known {self.kind}s: {', '.join(self)}; to use your own, add --plugin FILE"

    def update(self, things: Mapping[str, Thing]) -> None:
        """Add entries from outside the package, whose names are free."""
        self._added |= things

"""Names to things of one kind: what the package has, imported once it is asked for, and what a plugin adds."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from unicloze.errors import UsageError

Thing = TypeVar("Thing")


class Registry(Generic[Thing]):
    """Objectives or tasks by name.

    Args:
        kind: What one is called in messages.
        table: Name of the mapping in each module that holds its things by name.
        modules: By name the module of the package that has it.
    """

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
        """The thing of a name.

        Raises:
            UsageError: There is none.
        """
        if name in self._added:
            return self._added[name]
        if name not in self._modules:
            raise UsageError(f"there is no {self.kind} {name!r}; {self.unknown()}")
        found: Thing = getattr(importlib.import_module(self._modules[name]), self.table)[name]
        return found

    def get(self, name: str) -> Thing | None:
        """The thing of a name, None if there is none."""
        if name not in self:
            return None
        return self[name]

    def unknown(self) -> str:
        """What to do about a name that is not here."""
        return f"known {self.kind}s: {', '.join(self)}; one of your own needs --plugin FILE"

    def add(self, name: str, thing: Thing) -> None:
        """Add one from outside the package.

        Raises:
            UsageError: The name is taken.
        """
        if name in self:
            raise UsageError(f"there is already {self.kind} {name!r}: give yours another name")
        self._added[name] = thing

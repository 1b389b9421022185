"""YAML loader that locates malformed values, such as the date 2020-13-45, and duplicate keys."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

DEEPEST = 50
"""Levels of mappings and lists at most."""
LARGEST = 100_000
"""Values of a document at most."""
LARGEST_FILE = 2**20
"""Bytes of a file at most."""
_MERGE = "tag:yaml.org,2002:merge"


class Loader(yaml.SafeLoader):
    """Loads plain data of bounded size without duplicate keys; every error is a `yaml.YAMLError`."""

    def get_single_node(self) -> yaml.Node | None:
        """The document, not yet constructed."""
        self._depth = 0
        self._sizes: dict[int, int] = {}
        node: yaml.Node | None = super().get_single_node()
        return node

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """A node with all that is in it, aliases counted as often as they stand."""
        event: Any = super().peek_event()  # type: ignore[no-untyped-call]
        mark: Any = event.start_mark
        self._depth += 1
        if self._depth > DEEPEST:
            raise yaml.composer.ComposerError(None, None, f"it is nested more than {DEEPEST} levels deep", mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        if node is None or id(node) in self._sizes:
            return node
        if isinstance(event, yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "an alias stands within what it stands for", mark)
        inside = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = [part for entry in inside for part in (entry if isinstance(entry, tuple) else (entry,))]
        self._sizes[id(node)] = size = 1 + sum(self._sizes[id(part)] for part in parts)
        if size > LARGEST:
            raise yaml.composer.ComposerError(
                None, None, f"it holds more than {LARGEST:,} values, aliases counted", mark
            )
        return node

    def construct_scalar(self, node: Any) -> Any:
        """The text of a value."""
        if isinstance(node.value, str) and "\0" in node.value:
            raise yaml.constructor.ConstructorError(None, None, "it holds a NUL character", node.start_mark)
        return super().construct_scalar(node)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, OverflowError) as error:
            problem = f"this is not a valid {node.tag.rpartition(':')[2]}; quote it if it is text"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """The keys and values of a mapping; keys merged with `<<` may be overridden."""
        found = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node)
            if key in found:  # as keys, 1 and true are equal
                problem = f"duplicate key {key_node.value}; keep one"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            found.add(key)
        return super().construct_mapping(node, deep)

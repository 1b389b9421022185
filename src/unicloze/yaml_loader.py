"""YAML loader that locates malformed values, such as the date 2020-13-45, and duplicate keys."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"


class Loader(yaml.SafeLoader):
    """Loads plain data without duplicate keys; every error is a `yaml.YAMLError`."""

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

"""YAML that says where a value is that its tag does not fit, such as the day 2020-13-45, or a key that stands twice."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"


class Loader(yaml.SafeLoader):
    """Plain data only, without a key that is given twice; every error is a `yaml.YAMLError`."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, OverflowError) as error:
            problem = f"this is no {node.tag.rpartition(':')[2]}; put it between quotation marks if it is text"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """The keys and values of a mapping; what it merges by `<<` may be given again."""
        found = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node)
            if key in found:  # 1 equals true
                problem = f"the key {key_node.value} is given a second time; keep one"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            found.add(key)
        return super().construct_mapping(node, deep)

"""YAML that says where a value is that its tag does not fit, such as the day 2020-13-45."""

from __future__ import annotations

from typing import Any

import yaml


class Loader(yaml.SafeLoader):
    """Plain data only; every error is a `yaml.YAMLError`."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, OverflowError) as error:
            problem = f"this is no {node.tag.rpartition(':')[2]}; put it between quotation marks if it is text"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

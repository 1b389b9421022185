"""Reads other libraries' configurations, checking every value before anything of its size is allocated."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from unicloze.errors import UniclozeError

LARGEST_FILE = 4 << 20
"""Largest configuration in bytes; real ones have a few thousand."""
LARGEST = {"vocab_size": 1 << 22, "layers": 1 << 10, "size": 1 << 18}
"""Upper bounds for tables, stacks and widths, since a configuration may ask for more than its weights hold."""

Activation = Literal["gelu", "gelu_tanh", "relu"]

ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""Our names of their activations."""


def read_json(path: Path, *, largest: int = LARGEST_FILE, kind: type = dict) -> Any:
    """The JSON object in a file, or its list if `kind` is one.

    Raises:
        UniclozeError: The file is missing, too large, or not a JSON object.
    """
    try:
        size = path.stat().st_size
        if size > largest:
            raise UniclozeError(f"{path} has {size:,} bytes, too many for such a file: download it again")
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UniclozeError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # from the JSON and UTF-8 decoders
        raise UniclozeError(f"{path} is not valid JSON ({error}): download it again") from error
    if not isinstance(content, kind):
        raise UniclozeError(f"{path} is not a JSON {'object' if kind is dict else 'list'}: download it again")
    return content


@dataclass(frozen=True)
class Config:
    """A model's `config.json`. Errors name the file and the key.

    Args:
        path: The file.
        values: Its content.
    """

    path: Path
    values: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Config:
        """Read a configuration file.

        Raises:
            UniclozeError: It refers to custom code.
        """
        config = cls(path, read_json(path))
        if config.values.get("auto_map"):
            raise config.refused(
                "auto_map",
                "the model needs custom code, and a checkpoint's code is never run; if it is a standard "
                "model of its model_type, remove the key",
            )
        return config

    def refused(self, key: str, why: str) -> UniclozeError:
        """The error for an unsupported value."""
        return UniclozeError(f"{self.path}: {key} is {str(self.values.get(key))[:60]}: {why}")

    def only(self, key: str, *allowed: Any, why: str) -> None:
        """Reject a key whose value is not allowed; a missing key is accepted."""
        if key in self.values and self.values[key] not in allowed:
            raise self.refused(key, why)

    def whole(self, key: str, default: int | None = None, *, kind: str = "size", least: int = 1) -> int:
        """A bounded integer.

        Args:
            key: Its key.
            default: Value of a missing key; None if the key is required.
            kind: A key of `LARGEST`.
            least: Smallest allowed value.
        """
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST[kind]:
            expected = f"expected a whole number from {least} to {LARGEST[kind]:,}"
            if value is None:
                raise UniclozeError(f"{self.path} has no {key}: {expected}")
            raise self.refused(key, expected)
        return value

    def number(self, key: str, default: float, *, most: float = math.inf) -> float:
        """A number in [0, `most`)."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < most:
            raise self.refused(key, f"expected a number from 0 to below {most:g}")
        return float(value)

    def activation(self, key: str, default: str) -> Activation:
        """Our name of an activation."""
        name = self.values.get(key, default)
        if not isinstance(name, str) or name not in ACTIVATIONS:
            raise self.refused(key, f"supported activations are {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[name]

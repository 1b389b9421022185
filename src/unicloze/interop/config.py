"""Other people's JSON: configurations read with every value checked, before anything is made of its size."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from unicloze.errors import UniclozeError

LARGEST_FILE = 4 << 20
"""Bytes of a configuration; those in use have a few thousand."""
LARGEST = {"vocab_size": 1 << 22, "layers": 1 << 10, "size": 1 << 18}
"""No table, stack or width is larger: what a configuration asks for is not yet what its weights hold."""

Activation = Literal["gelu", "gelu_tanh", "relu"]

ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""Their names of activations."""


def read_json(path: Path, *, largest: int = LARGEST_FILE) -> dict[str, Any]:
    """The object a JSON file holds.

    Raises:
        UniclozeError: The file cannot be read, is too large or no JSON object.
    """
    try:
        size = path.stat().st_size
        if size > largest:
            raise UniclozeError(
                f"{path} has {size:,} bytes, more than any such file needs: it is not what it should be"
            )
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UniclozeError(f"{path}: cannot read it: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # of the decoders of JSON and of UTF-8
        raise UniclozeError(f"{path} is no JSON ({error}): download it again") from error
    if not isinstance(content, dict):
        raise UniclozeError(f"{path} holds no JSON object: download it again")
    return content


@dataclass(frozen=True)
class Config:
    """A model's `config.json`. What is wrong with a value is one sentence that names file and key.

    Args:
        path: The file.
        values: What it holds.
    """

    path: Path
    values: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Config:
        """The configuration of a file.

        Raises:
            UniclozeError: It cannot be read, or names code of its own.
        """
        config = cls(path, read_json(path))
        if config.values.get("auto_map"):
            raise config.refused(
                "auto_map",
                "the model computes by code that comes with it, and a checkpoint's code is never run; if it is a plain "
                "model of its model_type, remove the key",
            )
        return config

    def refused(self, key: str, why: str) -> UniclozeError:
        """The error for a value that a model here cannot have."""
        return UniclozeError(f"{self.path}: {key} is {str(self.values.get(key))[:60]}: {why}")

    def only(self, key: str, *allowed: Any, why: str) -> None:
        """Refuse all values of a key but some; a key that is not there is fine."""
        if key in self.values and self.values[key] not in allowed:
            raise self.refused(key, why)

    def whole(self, key: str, default: int | None = None, *, kind: str = "size", least: int = 1) -> int:
        """A whole number within bounds.

        Args:
            key: Its key.
            default: Where the key is not there; it must be there if None.
            kind: A key of `LARGEST`.
            least: The smallest it may be.
        """
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST[kind]:
            expected = f"expected a whole number from {least} to {LARGEST[kind]:,}"
            if value is None:
                raise UniclozeError(f"{self.path} has no {key}: {expected}")
            raise self.refused(key, expected)
        return value

    def number(self, key: str, default: float, *, most: float = math.inf) -> float:
        """A number from 0 to below `most`."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < most:
            raise self.refused(key, f"expected a number from 0 to below {most:g}")
        return float(value)

    def activation(self, key: str, default: str) -> Activation:
        """Our name of an activation."""
        name = self.values.get(key, default)
        if not isinstance(name, str) or name not in ACTIVATIONS:
            raise self.refused(key, f"a model here has {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[name]

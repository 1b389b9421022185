"""Converts values to ones that JSON can represent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def finite(data: Any) -> Any:
    """The data with non-finite floats, which JSON cannot represent, replaced by None."""
    if isinstance(data, Mapping):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data

"""What the verbs have in common."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

PathLike = str | Path
Overrides = Mapping[str, Any]

DEFAULT_RECIPE = "quickstart"
RUNS = Path("runs")
"""Where runs go that are given no directory, by name of their recipe."""

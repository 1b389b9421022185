"""What `unicloze recipes` says of each recipe, kept beside them: to read and build them all takes seconds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

KEPT = Path(__file__).with_name("summaries.json")


def kept_summaries() -> list[dict[str, Any]] | None:
    """The fields of each summary, None if a recipe is another one than when they were kept."""
    if not KEPT.is_file():
        return None
    kept: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8"))
    return kept["recipes"] if kept["of"] == _digest() else None


def keep_summaries(summaries: Sequence[Any]) -> None:
    """Write them for the recipes as they are."""
    kept = {"of": _digest(), "recipes": summaries}
    KEPT.write_text(json.dumps(kept, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _digest() -> str:
    """Of all recipes of the package, their names and contents."""
    found = hashlib.sha256()
    for file in sorted(KEPT.parent.rglob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        found.update(f"{file.relative_to(KEPT.parent).as_posix()}\0{len(text)}\0{text}".encode())
    return found.hexdigest()

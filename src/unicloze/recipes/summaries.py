"""Stores the output of `unicloze recipes` in a file, since reading and building all recipes takes seconds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

KEPT = Path(__file__).with_name("summaries.json")


def kept_summaries() -> list[dict[str, Any]] | None:
    """The fields of each stored summary; None if a recipe has changed since."""
    if not KEPT.is_file():
        return None
    kept: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8"))
    return kept["recipes"] if kept["of"] == _digest() else None


def keep_summaries(summaries: Sequence[Any]) -> None:
    """Store summaries of the current recipes."""
    kept = {"of": _digest(), "recipes": summaries}
    KEPT.write_text(json.dumps(kept, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _digest() -> str:
    """Digest of the names and contents of all recipes of the package."""
    found = hashlib.sha256()
    for file in sorted(KEPT.parent.rglob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        found.update(f"{file.relative_to(KEPT.parent).as_posix()}\0{len(text)}\0{text}".encode())
    return found.hexdigest()

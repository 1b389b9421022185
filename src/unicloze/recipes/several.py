"""Lists of recipes: the words that name several, and the summaries that `unicloze recipes` prints."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from unicloze.errors import UsageError
from unicloze.files import RECIPE
from unicloze.recipes import recipe_names

TABLES: Mapping[str, Sequence[str]] = {
    "table-6": tuple(f"unilmv2-ablation-{row}" for row in ("ae-par-relpos", "ae-par", "ae-ar", "ae", "par", "ar")),
}
"""Recipes for the rows of tables in the UniLMv2 paper, in order."""


def recipes_of(words: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Expand words to distinct recipes: a table, a pattern of names or files, a run, a name or a file."""
    found = [name for word in words for name in _named(os.fspath(word))]
    return list(dict.fromkeys(found))


def _named(word: str) -> list[str]:
    if word in TABLES:
        return list(TABLES[word])
    if not glob.has_magic(word):
        return [_file(word)]
    fitting = [name for name in recipe_names() if fnmatchcase(name, word)]
    fitting = fitting or [_file(path) for path in sorted(glob.glob(word)) if _is_recipe(Path(path))]
    if not fitting:
        raise UsageError(f"no recipe or run matches '{word}': `unicloze recipes` lists the recipes.")
    return fitting


def _is_recipe(path: Path) -> bool:
    return path.suffix in (".yaml", ".yml") or (path / RECIPE).is_file()


def _file(word: str) -> str:
    """The recipe file of a run; any other word unchanged."""
    path = Path(word)
    return str(path / RECIPE) if word not in recipe_names() and (path / RECIPE).is_file() else word


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

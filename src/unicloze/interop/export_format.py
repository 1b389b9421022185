"""What defines a format of exports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Export:
    """How a model is exported.

    Args:
        to: The format.
        architecture: The class of Transformers that loads it; empty for a format of unicloze alone.
        write: Writes all files but the model card.
        check: Loads a folder back and compares.
        said: As in `ExportResult`.
        imports: A module to import first, which registers the class in Transformers.
        tag: Its pipeline tag; default: that of the class.
        use: How to use it, as Markdown; default: with Transformers.
        name: Name of the model; default: that of its recipe.
        licence: Identifier of the licence; default: a note to add one.
        sections: Further sections of the model card by title, as Markdown.
    """

    to: str
    architecture: str
    write: Callable[[Path], None]
    check: Callable[[Path], Mapping[str, float]]
    said: tuple[str, ...] = ()
    imports: str = ""
    tag: str = ""
    use: str = ""
    name: str = ""
    licence: str = ""
    sections: Mapping[str, str] = field(default_factory=dict)

"""Parses Google docstrings, which also supply the command-line help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping


def purpose(documented: object) -> str:
    """The first line of a docstring."""
    return _text(documented).partition("\n")[0]


def arguments(documented: object) -> Mapping[str, str]:
    """Descriptions under `Args`, one line per argument."""
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", _section(documented, "Args"), flags=re.MULTILINE)
    inherited: dict[str, str] = {}
    for base in getattr(documented, "__bases__", ()):
        inherited |= {} if base is object else arguments(base)
    return inherited | {name: " ".join(text.split()) for name, text in entries}


def examples(documented: object) -> tuple[str, ...]:
    """Lines under `Examples`; a line indented further continues the previous one."""
    lines = re.findall(r"^ {4}(\S.*(?:\n {5,}.*)*)", _section(documented, "Examples"), flags=re.MULTILINE)
    return tuple(re.sub(r"\s*\n\s*", " ", line) for line in lines)


def _section(documented: object, title: str) -> str:
    found = re.search(rf"^{title}:\n((?: .*\n?|\n)*)", _text(documented), flags=re.MULTILINE)
    return found[1] if found else ""


def _text(documented: object) -> str:
    return inspect.cleandoc(documented.__doc__ or "")

"""Makes the text of the reference pages from the package itself, so that they cannot go out of date."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import unicloze
from unicloze import cli
from unicloze.errors import UniclozeError, UsageError
from unicloze.recipes import schema
from unicloze.verbs import about

COMMON = {"--help", "--plugin", "--debug", "--json", "--help-settings"}
"""Options of every verb, or of every verb with settings; the page explains them once."""


def cell(text: object) -> str:
    """Text as it stands in a cell of a table."""
    return " ".join(str(text).split()).replace("|", r"\|").replace("<", r"\<").replace("*", r"\*")


def code(text: object) -> str:
    """Code in a cell of a table."""
    return f"`{str(text).replace('|', chr(92) + '|')}`" if str(text) else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def commands() -> str:
    """Every verb with its options and examples."""
    return "\n".join(_command(name) for name in cli.VERBS)


def _command(name: str) -> str:
    verb = cli.VERBS[name]
    parser = cli._verb_parser(name, verb, with_settings=False)
    rows = [
        (
            code(_option(action)),
            cell((action.help or "").replace("%%", "%")) + (" Required." if action.required else ""),
        )
        for action in parser._actions
        if not COMMON.intersection(action.option_strings)
    ]
    parts = [f"## {name}", verb.purpose, table(("option", "meaning"), rows) if rows else ""]
    if verb.settings:
        parts.append("Takes [settings](settings.md), such as " + ", ".join(f"`--{key}`" for key in verb.settings) + ".")
    parts.append("```sh\n" + "\n".join(verb.examples) + "\n```\n")
    return "\n\n".join(part for part in parts if part)


def _option(action: argparse.Action) -> str:
    if not action.option_strings:
        return action.dest.upper() if action.metavar is None else str(action.metavar)
    if action.choices:
        return f"{action.option_strings[-1]} {{{','.join(map(str, action.choices))}}}"
    values = action.metavar if isinstance(action.metavar, tuple) else (action.metavar,)
    return " ".join(filter(None, (action.option_strings[-1], *values)))


def settings() -> str:
    """Every setting of every section."""
    return "\n".join(_section(section) for section in schema.SECTIONS if section != "provenance")


def _section(section: str) -> str:
    known = {key: value for key, value in schema.every_key().items() if key.startswith(f"{section}.")}
    varied = section in schema.VARIED
    rows = []
    for key, value in known.items():
        of = [] if not varied else [cell(_owners(section, key))]
        default = code(_default(value.default)) if value.default is not None else "null"
        rows.append([code(key.partition(".")[2]), _expected(value.type), default, *of, cell(value.description)])
    head = ["setting", "value", "default", *(["of"] if varied else []), "meaning"]
    return f"## {section}\n\n{table(head, rows)}"


def _expected(hint: Any) -> str:
    return re.sub(r"'([^']+)'", r"`\1`", cell(schema.expected(hint)))


def _owners(section: str, key: str) -> str:
    registry, _ = schema.VARIED[section]
    having = schema.having(key)
    return "all" if len(having) == len(list(registry)) else ", ".join(having)


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {one}" for name, one in value.items()) + "}"
    return str(value)


def recipes() -> str:
    """Every recipe, and where its values are from."""
    rows = about.recipes().to_dict()
    of_models = [row for row in rows if row["parameters"] is not None]
    of_tasks = [row for row in rows if row["parameters"] is None]
    parts = []
    for title, what, part in (("Pre-training", "objective", of_models), ("Tasks", "task", of_tasks)):
        parts.append(f"## {title}\n")
        lines = [
            (
                code(row["name"]),
                cell(row["objective"]),
                _size(row["parameters"]),
                cell(row["paper"]),
                cell(row["place"]),
            )
            for row in part
        ]
        parts.append(table(("recipe", what, "weights", "values from", "place"), lines))
    return "\n".join(parts)


def _size(parameters: int | None) -> str:
    return "" if parameters is None else f"{parameters / 1e6:,.1f} M"


def functions() -> str:
    """Every public function of the package, documented from its docstring."""
    names = sorted(name for name in unicloze.__all__ if name not in ("Recipe", "__version__"))
    lines = "\n".join(f".. autofunction:: unicloze.{name}\n" for name in names)
    return f"```{{eval-rst}}\n.. currentmodule:: unicloze\n\n{lines}```\n"


def results() -> str:
    """Every class of what a public function returns, and the errors."""
    found = {result for name in unicloze.__all__ for result in _results_of(getattr(unicloze, name))}
    classes = sorted(found, key=lambda one: one.__name__)
    lines = "\n".join(
        f".. autoclass:: {one.__module__}.{one.__name__}\n" for one in (*classes, UniclozeError, UsageError)
    )
    return f"```{{eval-rst}}\n{lines}```\n"


def _results_of(function: object) -> Iterator[type]:
    """The classes of this package in a function's return annotation, most of which are imported for type checking only."""
    if not inspect.isfunction(function):
        return
    module = inspect.getmodule(function)
    places = {
        alias.name: node.module
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(ast.parse(function.__annotations__["return"], mode="eval")):
        if isinstance(node, ast.Name) and places.get(node.id, "").startswith("unicloze."):
            named = getattr(importlib.import_module(places[node.id]), node.id)
            if inspect.isclass(named):
                yield named


TEXTS: Mapping[str, Callable[[], str]] = {
    "commands": commands,
    "functions": functions,
    "recipes": recipes,
    "results": results,
    "settings": settings,
}
"""The text for each mark of a page."""

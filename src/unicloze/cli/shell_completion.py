"""Shell completion: the script that completes verbs, options, settings and recipe names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args, get_origin

from unicloze.cli.parser import Parser, Verb, add_options

FOLDERS = "DIR", "RUN", "CHECKPOINT"
FILES = "FILE", "PATH", "FILE|MODULE"
"""Names of the values of options that are completed by the names of folders or files."""


def script_of(verbs: Mapping[str, Verb], shell: str) -> str:
    """The script that completes the command line of some verbs in a shell."""
    import shtab

    script: str = shtab.complete(parser_of(verbs), shell=shell)
    return script


def parser_of(verbs: Mapping[str, Verb]) -> Parser:
    """One parser of the whole command line, with a parser for each verb below it."""
    from unicloze.recipes import recipe_names, task_names
    from unicloze.recipes.schema import every_key

    program = Parser(prog="unicloze")
    program.add_argument("--version", action="version", version="", help="Show the version.")
    below = program.add_subparsers(parser_class=Parser)
    groups = {name.partition(" ")[0] for name in verbs if " " in name}
    within = {name: below.add_parser(name, help=f"{name} WHAT").add_subparsers() for name in sorted(groups)}
    settings = {key: known.type for key, known in every_key().items() if "." in key}
    for name, verb in verbs.items():
        first, _, second = name.partition(" ")
        parser = (within[first] if second else below).add_parser(second or first, help=verb.purpose)
        add_options(parser, verb)
        sections = {key.partition(".")[0] for key in verb.settings}
        for key, hint in settings.items():
            if key.partition(".")[0] in sections:
                parser.add_argument(f"--{key}", choices=_literals(hint) or None, metavar="VALUE")
        parser.add_argument("--plugin", metavar="FILE|MODULE")
        for switch in ("--debug", *(["--help-settings"] if verb.settings else [])):
            parser.add_argument(switch, action="store_true")
        _complete_values(parser, {"recipe": recipe_names(), "recipes": recipe_names(), "task": task_names()})
    return program


def _literals(hint: object) -> tuple[str, ...]:
    """The values of a setting that has only a few."""
    return tuple(map(str, get_args(hint))) if get_origin(hint) is Literal else ()


def _complete_values(parser: Parser, known: Mapping[str, list[str]]) -> None:
    """Say of each option which values it takes."""
    import shtab

    for action in parser._actions:
        if action.dest in known:
            action.choices = known[action.dest]
        elif action.metavar in FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.metavar in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]

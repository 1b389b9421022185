"""Builds a verb's parser from its function: signature, docstring and marks of `verbs.options`; completes it in shells."""

from __future__ import annotations

import argparse
import builtins
import functools
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

from unicloze import docstrings
from unicloze.errors import UsageError, did_you_mean
from unicloze.verbs.options import JSON, OneOf, Option, Settings

REQUIRED = inspect.Parameter.empty


class Parser(argparse.ArgumentParser):
    """Argument parser that raises `UsageError` instead of exiting and accepts no abbreviations."""

    def __init__(self, **arguments: Any) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, add_help=False, formatter_class=formatter, **arguments)
        self.add_argument("-h", "--help", action="help", help="Show this help.")

    @property
    def takes_words(self) -> bool:
        """Whether it takes positional words."""
        return bool(self._get_positional_actions())

    def error(self, message: str) -> NoReturn:
        """Raise argparse's complaint as a `UsageError`."""
        message = message.replace("argument ", "option ", 1) if message.startswith("argument ") else message
        place = self.prog.removeprefix("unicloze").lstrip()
        said = f"{place}{': ' if place else ''}{message}{' ' if message.endswith('?') else '; '}"
        raise UsageError(f"{said}`{self.prog} --help` shows how.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Say which of the values is most likely meant, too."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += did_you_mean(str(value).lower(), map(str, action.choices or ())).removesuffix(".")
            raise

    def require_nothing(self) -> None:
        """Make all options optional, for commands that only show help."""
        for action in self._actions:
            action.required = False
        for group in self._mutually_exclusive_groups:
            group.required = False


class _Once(argparse.Action):
    """Stores a value, and refuses a second one, which would replace it."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        if hasattr(namespace, self.dest) and self.option_strings:
            raise argparse.ArgumentError(self, "it is given twice: give it once")
        setattr(namespace, self.dest, values)


@dataclass(frozen=True)
class Argument:
    """An argument of a function."""

    name: str  # name in the signature
    kinds: tuple[Any, ...]  # types in its annotation, without marks and None
    marks: tuple[Any, ...]  # marks in its annotation
    default: Any  # default value, or `REQUIRED`
    help: str  # description in the docstring

    @property
    def option(self) -> Option:
        """The mark that describes its command-line option."""
        return next((mark for mark in reversed(self.marks) if isinstance(mark, Option)), Option(""))

    @property
    def settings(self) -> Settings | None:
        """The dotted settings it takes, if any."""
        return next((mark for mark in self.marks if isinstance(mark, Settings)), None)

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        option = self.option
        return str(option.metavar) if option.word else f"--{option.name or self.name.replace('_', '-')}"


@dataclass(frozen=True)
class Verb:
    """A verb of the command line, declared by a function."""

    name: str  # name of the verb
    function: Callable[..., Any]  # the function that runs it
    instead: Mapping[str, Callable[..., Any]] = field(default_factory=dict)  # switches that select another function

    @property
    def purpose(self) -> str:
        """What it does, in one line."""
        return docstrings.purpose(self.function)

    @property
    def examples(self) -> tuple[str, ...]:
        """Example commands from the docstring."""
        return docstrings.examples(self.function)

    @functools.cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """The arguments of its function."""
        return tuple(arguments_of(self.function))

    @property
    def settings(self) -> tuple[str, ...]:
        """Dotted settings shown in its help; empty if it takes no settings."""
        return next((one.settings.shown for one in self.arguments if one.settings and not one.settings.prefix), ())

    @property
    def prefix(self) -> str:
        """Prefix of dotted settings that do not belong to the recipe; empty if there are none."""
        return next((one.settings.prefix for one in self.arguments if one.settings and one.settings.prefix), "")

    def recipe(self, options: argparse.Namespace) -> str | None:
        """The recipe whose values `--help-settings` lists."""
        named = next((one.settings.recipe for one in self.arguments if one.settings and one.settings.recipe), "")
        default = next((one.option.otherwise or one.default for one in self.arguments if one.name == named), None)
        found: str | None = getattr(options, named, default)
        return found


class _Lenient(dict[str, Any]):
    """Names of a module, in which names imported only for type checking evaluate to Any."""

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            raise KeyError(name)
        return Any


def arguments_of(function: Callable[..., Any]) -> Iterator[Argument]:
    """The arguments of a function. Its annotations are evaluated without importing the heavy modules they name."""
    said = docstrings.arguments(function)
    names = _Lenient(vars(sys.modules[function.__module__]))
    for name, parameter in inspect.signature(function).parameters.items():
        hint = eval(parameter.annotation, {"__builtins__": builtins}, names)  # our own source, not a user's
        kinds, marks = _apart(hint)
        text = said.get(name, "")
        if other := re.fullmatch(r"As of `(\w+)`\.", text):  # of another function in the module
            text = docstrings.arguments(names[other[1]])[name]
        yield Argument(name, kinds, marks, parameter.default, text)


def _apart(hint: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Split an annotation into the types of its union and all its marks."""
    if get_origin(hint) is Annotated:
        kinds, marks = _apart(hint.__origin__)
        return kinds, (*marks, *hint.__metadata__)
    if get_origin(hint) in (Union, types.UnionType):
        parts = [_apart(member) for member in get_args(hint)]
        return tuple(kind for kinds, _ in parts for kind in kinds), tuple(mark for _, marks in parts for mark in marks)
    return (() if hint is type(None) else (hint,)), ()


def add_options(parser: Parser, verb: Verb) -> None:
    """Add a verb's options to a parser. Options not given stay out of the namespace, so the function's defaults apply."""
    groups: dict[str, Any] = {}

    def place(marks: tuple[Any, ...]) -> Any:
        mark = next((mark for mark in marks if isinstance(mark, OneOf)), None)
        if mark is None:
            return parser
        if mark.group not in groups:
            groups[mark.group] = parser.add_mutually_exclusive_group(required=mark.required)
        return groups[mark.group]

    for argument in verb.arguments:
        if argument.settings is None:
            _add(place(argument.marks), argument)
    for switch, function in verb.instead.items():
        parser.add_argument(f"--{switch}", action="store_true", help=docstrings.purpose(function))
    place((JSON,) if JSON.group in groups else ()).add_argument(
        "--json", action="store_true", help="Print JSON instead of text."
    )
    if verb.settings:
        parser.add_argument(
            "--help-settings", action="store_true", help="List all settings with the values this command would use."
        )
    add_common_options(parser)


def add_common_options(parser: Parser) -> None:
    """Add the options that every verb has, also before its name."""
    parser.add_argument(
        "--plugin",
        metavar="FILE|MODULE",
        help="Load objectives, tasks and metrics from a Python file or module, which runs its code; may be repeated.",
    )
    parser.add_argument("--debug", action="store_true", help="Show tracebacks of errors.")


def _add(place: Any, argument: Argument) -> None:
    option = argument.option
    given: dict[str, Any] = {"help": _help(argument), "default": argparse.SUPPRESS}
    if bool in argument.kinds:
        place.add_argument(argument.flag, dest=argument.name, action="store_true", **given)
        return
    choices = next((get_args(kind) for kind in argument.kinds if get_origin(kind) is Literal), None)
    if choices:
        given["choices"] = choices
    else:
        given["metavar"] = option.metavar
        given["type"] = option.convert or next((kind for kind in (int, float) if kind in argument.kinds), None)
    if isinstance(option.metavar, tuple):
        given["nargs"] = len(option.metavar)
    given["action"] = "append" if option.repeated else _Once
    if option.several:
        given["nargs"] = "*" if option.word else "+"
    if option.word:
        if option.several:
            given["default"] = []
        place.add_argument(argument.name, **given)
    else:
        required = argument.default is REQUIRED and option.otherwise is None
        place.add_argument(argument.flag, dest=argument.name, required=required, **given)


def _help(argument: Argument) -> str:
    """Description without the remarks for Python callers, with the default."""
    text = re.sub(r"; in Python [^;.]*", "", argument.help).replace("`", "")
    default = argument.option.otherwise or argument.default
    if not any(default is nothing for nothing in (REQUIRED, None, False, ())):
        text = f"{text.removesuffix('.')} (default: {default})."
    return text.replace("%", "%%")


def call_arguments(verb: Verb, options: argparse.Namespace, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments for a verb's function, from the parsed options and the dotted settings."""
    found: dict[str, Any] = {}
    for argument in verb.arguments:
        settings, option = argument.settings, argument.option
        if settings is not None:
            prefix, others = settings.prefix, "" if settings.prefix else verb.prefix
            given = overrides.items()
            own = {
                key: value for key, value in given if key.startswith(prefix) and not (others and key.startswith(others))
            }
            found[argument.name] = {key.removeprefix(prefix): value for key, value in own.items()}
        elif hasattr(options, argument.name):
            value = getattr(options, argument.name)
            found[argument.name] = option.collect(value) if option.collect else value
        elif option.otherwise is not None:
            found[argument.name] = option.otherwise
    return found


def instead_of(verb: Verb, switch: str, options: argparse.Namespace, found: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments for the function of a switch."""
    taken = {argument.name: argument for argument in arguments_of(verb.instead[switch])}
    named = [one for one in verb.arguments if hasattr(options, one.name)]
    given = [one for one in named if one.name != "quiet"]  # it never shows progress
    strange = [one.flag for one in given if one.name not in taken] + ["--json"] * options.json
    missing = [one.flag for one in taken.values() if one.default is REQUIRED and one.name not in found]
    if strange or missing:
        flags = [one.flag for one in taken.values() if one.settings is None]
        wrong = f"leave {strange[0]} out" if strange else f"give {missing[0]}"
        raise UsageError(f"{verb.name}: --{switch} takes only {', '.join(flags[:-1])} and {flags[-1]}: {wrong}.")
    return {name: value for name, value in found.items() if name in taken}


FOLDERS = "DIR", "RUN", "CHECKPOINT"
FILES = "FILE", "PATH", "FILE|MODULE"
"""Names of the values of options that are completed by the names of folders or files."""


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
                values = map(str, get_args(hint)) if get_origin(hint) is Literal else ()
                parser.add_argument(f"--{key}", choices=tuple(values) or None, metavar="VALUE")
        _complete_values(parser, {"recipe": recipe_names(), "recipes": recipe_names(), "task": task_names()})
    return program


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

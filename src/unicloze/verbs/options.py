"""Marks for what an argument's type cannot say about its command-line option: name, parsing and exclusions.

`unicloze.cli.parser` builds the command-line options from a function's signature, its `Args` and these marks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Protocol, runtime_checkable

from unicloze.errors import UsageError
from unicloze.verbs.common import Overrides, PathLike

if TYPE_CHECKING:
    from unicloze.training.loading import LoadedModel


@dataclass(frozen=True)
class Option:
    """How an argument of a verb appears on the command line: as an option or as a positional word.

    Args:
        metavar: Name of its value in the help; a tuple if the option takes that many words.
        convert: Converts a word to a value; default: by the annotated type.
        name: Name of the option; the argument's name if empty.
        repeated: Whether the option may be repeated, each time adding a value.
        several: Whether it takes one or more words.
        word: Whether it is positional.
        collect: Converts the list of a repeated option's values to the argument; default: keep the list.
        otherwise: Command-line default of an argument that Python callers must give; if None it is required there too.
    """

    metavar: str | tuple[str, ...]
    convert: Callable[[str], Any] | None = None
    name: str = ""
    repeated: bool = False
    several: bool = False
    word: bool = False
    collect: Callable[[Sequence[Any]], Any] | None = None
    otherwise: str | None = None


@dataclass(frozen=True)
class OneOf:
    """Marks mutually exclusive arguments: at most one of a group may be given.

    Args:
        group: Name of the group.
        required: Whether one must be given.
    """

    group: str
    required: bool = False


JSON = OneOf("json")
"""Group of the arguments that exclude `--json`."""


@dataclass(frozen=True)
class Settings:
    """Marks the argument that receives the dotted settings.

    Args:
        shown: Settings shown in the verb's help.
        recipe: Argument naming the recipe whose values `--help-settings` lists; if empty, it lists the defaults.
        prefix: Prefix of these settings, if settings without it go to another argument.
    """

    shown: tuple[str, ...] = ()
    recipe: str = ""
    prefix: str = ""


@runtime_checkable
class Result(Protocol):
    """Result of a verb: `str` renders it for the terminal, `to_dict` for JSON.

    It may also have an `exit_code` other than 0, and `notes`: sentences that are not part of the output.
    """

    def to_dict(self) -> Any:
        """The fields as a JSON-serialisable dictionary."""


def clean(text: str) -> str:
    """Replace invalid UTF-8 from the command line by U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def pair(text: str) -> tuple[str, str]:
    """Split NAME=VALUE into a pair.

    Raises:
        UsageError: The name or the equals sign is missing.
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"--option {text} is not a setting: write it as NAME=VALUE, such as profile=cnndm.")
    return name, value


Model = Annotated["PathLike | LoadedModel", Option("DIR")]
Device = Annotated[str, Option("NAME")]
File = Annotated[PathLike, Option("FILE")]
Folder = Annotated[PathLike, Option("DIR")]
RecipeName = Annotated[PathLike, Option("NAME|FILE")]
Number = Annotated[int, Option("N")]
OfFiles = Annotated[Overrides | None, Settings(("task.fields", "task.format"))]
"""Settings that describe how a file of records is read."""
NamedValues = Annotated[
    Mapping[str, str] | None, Option("NAME=VALUE", pair, name="option", repeated=True, collect=dict)
]

"""What the signature of a verb cannot say of an option by its type: how a word is called, read and combined with others.

`unicloze.cli.parser` makes the options of the command line from the signature of a function, its `Args` and these marks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Protocol, runtime_checkable

from unicloze.errors import UsageError
from unicloze.verbs.common import Overrides, PathLike

if TYPE_CHECKING:
    from unicloze.training.models import LoadedModel


@dataclass(frozen=True)
class Option:
    """An argument of a verb as an option of the command line, or as a word that belongs to none.

    Args:
        metavar: What the help calls its value; several where one option takes as many words.
        convert: Turns a word into the value; by the annotated type if not given.
        name: Name of the option; that of the argument if empty.
        repeated: Whether the option may be given again, each time for one more value.
        several: Whether it takes one or more words.
        word: Whether it is a word that belongs to no option.
        collect: Turns all values of a repeated option into the argument; a list if not given.
        otherwise: The value on the command line of what a caller from Python has to give; required there too if None.
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
    """Of all arguments of a verb with the same mark at most one may be given.

    Args:
        group: Tells such groups apart.
        required: Whether one must be given.
    """

    group: str
    required: bool = False


JSON = OneOf("json")
"""Of what cannot be given together with `--json`."""


@dataclass(frozen=True)
class Settings:
    """An argument that takes the dotted settings of the command line.

    Args:
        shown: Those that the help of the verb shows.
        recipe: The argument that names the recipe whose values `--help-settings` lists; the defaults if empty.
        prefix: What these settings begin with, where others go to another argument.
    """

    shown: tuple[str, ...] = ()
    recipe: str = ""
    prefix: str = ""


@runtime_checkable
class Result(Protocol):
    """What a verb gives back: `str` shows it at a terminal, `to_dict` is its JSON.

    It may also have an `exit_code` other than 0, and `notes`, sentences that do not belong to the output.
    """

    def to_dict(self) -> Any:
        """Its fields as a JSON-serialisable dictionary."""


def clean(text: str) -> str:
    """Bytes of the command line that are no UTF-8 become U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def pair(text: str) -> tuple[str, str]:
    """A word NAME=VALUE as a pair.

    Raises:
        UsageError: It is none.
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"--option {text} is no setting: write it as NAME=VALUE, such as profile=cnndm.")
    return name, value


Model = Annotated["PathLike | LoadedModel", Option("DIR")]
Device = Annotated[str, Option("NAME")]
File = Annotated[PathLike, Option("FILE")]
Folder = Annotated[PathLike, Option("DIR")]
RecipeName = Annotated[PathLike, Option("NAME|FILE")]
Number = Annotated[int, Option("N")]
OfFiles = Annotated[Overrides | None, Settings(("task.fields", "task.format"))]
"""Settings that say how a file of records is read."""
NamedValues = Annotated[
    Mapping[str, str] | None, Option("NAME=VALUE", pair, name="option", repeated=True, collect=dict)
]

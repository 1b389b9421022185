"""Options of verbs: marks for what an argument's type cannot say (name, parsing, exclusions), and shared defaults and checks.

`unicloze.cli.parser` builds the command-line options from a function's signature, its `Args` and these marks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, runtime_checkable

from unicloze.cores import tune_allocator
from unicloze.errors import UsageError
from unicloze.files import begins_like, is_utf8, real_place

if TYPE_CHECKING:
    from unicloze.settings import Precision
    from unicloze.training.loading import LoadedModel

PathLike = str | Path
Overrides = Mapping[str, Any]

DEFAULT_RECIPE = "quickstart"
RUNS = Path("runs")
"""Parent of runs without a given directory; each is named after its recipe."""
OF_FILES = "task.fields", "task.format"
"""Settings that describe how a file is read; it may differ from the training file."""


def check_fixed(overrides: Overrides | None, free: Sequence[str]) -> None:
    """Reject overrides of settings that a trained model fixes: all but those in `free`, which may also name sections.

    Raises:
        UsageError: Another setting is overridden, or does not exist.
    """
    from unicloze.recipes.validation import given_settings

    for key in given_settings(overrides):
        if key not in free and key.partition(".")[0] not in free:
            raise UsageError(f"{key} cannot be changed here: only {', '.join(free)} can.")


def opened(model: PathLike | LoadedModel, device: str, precision: Precision | None = None) -> LoadedModel:
    """Open a model in a process whose memory suits large computations."""
    tune_allocator()
    from unicloze.interop.read import open_model

    return open_model(model, device, precision)


def check_one_given(first: object, second: object, what: str) -> None:
    """Refuse both of two arguments, and none."""
    if (first is None) == (second is None):
        raise UsageError(f"Give either a text or a file {what}.")


def folder_at(
    out: PathLike | None, otherwise: Path | None = None, *, option: str = "--out", replaced: bool = False
) -> Path:
    """The folder a verb writes to.

    Args:
        out: Value of the option.
        otherwise: Default if `out` is None.
        option: The option, for messages.
        replaced: Whether a finished folder takes its place, so that it cannot be the current directory.

    Raises:
        UsageError: The name is empty, which would mean the current directory, or of a folder that cannot be replaced.
    """
    out = otherwise if out is None else out
    if out is None or str(out) == "":
        raise UsageError(f"{option} is empty: name a folder{'' if replaced else ', or . for this one'}.")
    if "\0" in str(out):
        raise UsageError(f"{option} contains a NUL character, which names cannot: give another.")
    if not is_utf8(str(out)):
        raise UsageError(f"{option} is not UTF-8: give another name.")
    if replaced and Path.cwd().is_relative_to(Path(out).resolve()):
        raise UsageError(
            f"{option} is {out}, which holds this folder and would be replaced as a whole: name a new one."
        )
    return Path(out)


def check_file(
    out: PathLike | None, *inputs: PathLike | None, begins: Sequence[bytes] = (b"",), option: str = "--out"
) -> None:
    """Reject an output file that cannot or should not be written, before any work is done.

    Args:
        out: The file.
        inputs: Files that the same command reads.
        begins: Patterns of the beginning of the output; an existing file that matches none is not replaced.
        option: The option that names the file.

    Raises:
        UsageError: Its folder does not exist or is not writable, it is a folder, a device or a pipe, the same command reads
            it, or it holds something else.
    """
    if out is None:
        return
    if str(out) == "" or "\0" in str(out):
        raise UsageError(f"{option} is empty or contains a NUL character: name a file.")
    file = real_place(Path(out))
    is_file, folder = file.is_file(), file.parent
    wrong = {
        f"{file} is a folder: give {option} a file in it": file.is_dir(),
        f"{file} is read by this command and would be replaced: give another {option}": is_file
        and any(Path(one).exists() and file.samefile(one) for one in inputs if one is not None),
        f"{file} holds something else, which would be replaced: give another {option}, or move it away": is_file
        and not begins_like(file, *begins),
        f"{file} is a device or a pipe: give {option} a file, or leave it out to print the result": file.exists()
        and not is_file,
        f"there is no folder {folder} for {file.name}: create it, or give another {option}": not folder.is_dir(),
        f"the folder {folder} is not writable: give another {option}": not os.access(folder, os.W_OK),
    }
    for message, holds in wrong.items():
        if holds:
            raise UsageError(f"{message}.")


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


def by_name(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Values by name.

    Raises:
        UsageError: A name is given twice.
    """
    values: dict[str, str] = {}
    for name, value in pairs:
        if name in values:
            raise UsageError(f"--option {name} is given twice: give it once.")
        values[name] = value
    return values


Model = Annotated["PathLike | LoadedModel", Option("DIR")]
Device = Annotated[str, Option("NAME")]
File = Annotated[PathLike, Option("FILE")]
Folder = Annotated[PathLike, Option("DIR")]
RecipeName = Annotated[PathLike, Option("NAME|FILE")]
Number = Annotated[int, Option("N")]
OfFiles = Annotated[Overrides | None, Settings(("task.fields", "task.format"))]
"""Settings that describe how a file of records is read."""
NamedValues = Annotated[
    Mapping[str, str] | None, Option("NAME=VALUE", pair, name="option", repeated=True, collect=by_name)
]

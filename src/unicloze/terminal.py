"""Terminal output: results as text or JSON, one-line warnings, one-sentence errors."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import shlex
import shutil
import signal
import stat
import sys
import textwrap
import traceback
import warnings
from collections.abc import Iterator, Sequence
from json import dumps
from typing import Any, TextIO

from unicloze import cores
from unicloze.errors import FailedElsewhere, UniclozeError, signal_name
from unicloze.files import finite
from unicloze.verbs.options import Result

BUG = 70
"""Exit code of an internal error (EX_SOFTWARE)."""


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters that text from a file must not send to a terminal."""


PLUGINS: list[str] = []
"""Plugins given on the command line, which the commands in messages repeat."""
_COMMAND = re.compile(r"\bunicloze (?=[a-z][a-z-]*(?: [^\s`]+)? --\w)")


def say(kind: str, sentence: str) -> None:
    """Print one line to stderr."""
    if PLUGINS:
        options = "".join(f"--plugin {shlex.quote(plugin)} " for plugin in PLUGINS)
        sentence = _COMMAND.sub(lambda _: f"unicloze {options}", sentence)
    with contextlib.suppress(OSError):  # the terminal is closed
        print(f"unicloze: {kind}: {_CONTROL.sub(lambda found: repr(found[0])[1:-1], sentence)}", file=sys.stderr)


def escape_what_stdout_lacks() -> None:
    """Make stdout escape characters that its encoding lacks, instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def show(result: Any, *, json: bool) -> None:
    """Print a verb's result as text or JSON, streamed pieces immediately, and its notes to stderr.

    With several processes, only the first prints.
    """
    if cores.rank():
        return
    for note in getattr(result, "notes", ()):
        say("note", note)
    try:
        if isinstance(result, Iterator):
            for piece in result:
                print(piece, end="", flush=True)
            print()
        else:
            print(_as_json(result) if json else _fitted(str(result)), flush=True)
    except OSError as error:
        if error.errno != errno.EIO or not stat.S_ISCHR(os.fstat(sys.stdout.fileno()).st_mode):
            raise
        discard_unwritable(sys.stdout)  # the terminal was closed


def _fitted(text: str) -> str:
    """Wrap long lines to the terminal's width, tables under their last column. JSON and piped text stay unchanged."""
    if sys.stdout is None or not sys.stdout.isatty():
        return text
    width = max(40, shutil.get_terminal_size().columns)
    return "\n".join(
        line if len(line) <= width or line.startswith(("{", "[")) else _broken(line, width) for line in text.split("\n")
    )


def _broken(line: str, width: int) -> str:
    """Wrap a line; continuation lines are indented to the last table column that begins within the width."""
    starts = [match.end() for match in re.finditer(r"\S {2,}(?=\S)", line[:width])]
    last = starts[-1] if starts else 0
    outer = len(line) - len(line.lstrip()) + 4
    if 0 < last <= width * 0.6:
        return _wrapped(line, width, " " * last)
    if last:  # the last column would be too narrow: it begins on a new line
        parts = line[:last].rstrip(), " " * outer + line[last:]
        return "\n".join(_wrapped(part, width, " " * outer) for part in parts)
    return _wrapped(line, width, " " * outer)


def _wrapped(line: str, width: int, indent: str) -> str:
    """Wrap a line at words."""
    lines = textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def _as_json(result: Any) -> str:
    data = result.to_dict() if isinstance(result, Result) else result
    ascii_only = not (sys.stdout.encoding or "").lower().startswith("utf")
    return dumps(finite(data), ensure_ascii=ascii_only, allow_nan=False, default=str)


def main_settings(keys: Sequence[str]) -> str:
    """A list of some dotted settings with their descriptions."""
    from unicloze.recipes.schema import KEYS

    lines = ["main settings of the recipe (--help-settings lists all):"]
    for key in keys:
        lines += _setting(key, "", KEYS[key].description)
    return "\n".join(lines)


def all_settings(recipe: str | None, overrides: dict[str, Any]) -> str:
    """A list of all dotted settings by section, with their values in a recipe with overrides, or their defaults."""
    from unicloze.objectives import OBJECTIVES
    from unicloze.recipes import load_recipe
    from unicloze.recipes.schema import KEYS, SECTIONS, keys_of

    chosen = load_recipe(recipe, overrides) if recipe is not None else None
    lines = [f"Settings of the recipe {recipe}:" if chosen else "Settings of a recipe, with their defaults:"]
    for section, settings in SECTIONS.items():
        if section == "provenance":
            continue
        lines += ["", f"{section}: {(settings.__doc__ or '').partition(chr(10))[0]}"]
        own = type(getattr(chosen, section)) if chosen else settings
        if chosen is None and section == "objective":
            own = OBJECTIVES[KEYS["objective.name"].default].settings
        for key, known in keys_of(section, own).items():
            value = getattr(getattr(chosen, section), key.rpartition(".")[2]) if chosen else known.default
            lines += _setting(key, _spelled(value), known.description)
    return "\n".join(lines)


def _setting(key: str, value: str, description: str) -> list[str]:
    width, indent = min(120, shutil.get_terminal_size().columns), " " * 8
    return [
        f"  --{key} {value}".rstrip(),
        *textwrap.wrap(description, width, initial_indent=indent, subsequent_indent=indent),
    ]


def _spelled(value: Any) -> str:
    """A value in command-line syntax."""
    if isinstance(value, list | tuple):
        return " ".join(map(_spelled, value)) or "[]"
    if value is None or isinstance(value, bool | dict):
        return dumps(value)
    return f'"{value}"' if " " in str(value) or value == "" else str(value)


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived, or SIGHUP because a terminal was closed, while no training was running."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(number)
        self.number = number


def explain(error: BaseException) -> tuple[str, int]:
    """The message and exit code of an error; the message is empty if stdout was closed."""
    if isinstance(error, FailedElsewhere) and cores.rank():
        return "", error.exit_code
    if isinstance(error, UniclozeError):
        return str(error), error.exit_code
    if isinstance(error, Terminated):
        return f"Stopped by {signal_name(error.number)}.", 128 + error.number
    if isinstance(error, KeyboardInterrupt):
        return f"Stopped by {signal_name(signal.SIGINT)}.", 130
    if isinstance(error, BrokenPipeError):
        return "", 141
    if (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in str(error)
    ):
        return (
            "There is not enough memory: lower --training.micro_batch_size, --data.window or the size of the model "
            f"({_one_line(error) or 'out of memory'}).",
            1,
        )
    if isinstance(error, OSError):
        return _explain_os_error(error), 1
    if number := re.search(r"\(os error (\d+)\)", str(error)):  # from Rust: safetensors, tokenizers
        return _explain_os_error(OSError(int(number[1]), os.strerror(int(number[1])))), 1
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" in {os.path.basename(place[0].filename)}, line {place[0].lineno}" if place else ""
    return (
        f"This is a bug in unicloze: {type(error).__name__}: {_one_line(error)}{where}; run it again with --debug and "
        "report what it prints.",
        BUG,
    )


def _explain_os_error(error: OSError) -> str:
    place = f"{error.filename}: " if error.filename is not None else ""
    reason = error.strerror or _one_line(error) or type(error).__name__
    cures = {
        "free some space and run it again; what was already written is still there": (errno.ENOSPC, errno.EDQUOT),
        "change its permissions, or name another place": (errno.EACCES, errno.EPERM),
        "name another place": (errno.EROFS, errno.EEXIST, errno.ENOTDIR),
        "check the name": (errno.ENOENT,),
        "name a file": (errno.EISDIR,),
        "raise the limit of open files with `ulimit -n`": (errno.EMFILE,),
    }
    refused = "the system refused it; `--debug` shows where"
    cure = next((cure for cure, numbers in cures.items() if error.errno in numbers), refused)
    return f"{place}{reason[:1].lower() if place else reason[:1]}{reason[1:]}: {cure}."


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


@contextlib.contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Show warnings as `unicloze: warning: ...` on stderr."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        say("warning", " ".join(str(message).split()))

    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = show
        yield


def discard_unwritable(stream: TextIO | None) -> None:
    """Redirect a stream that cannot be written to the null device, so that the flush at exit does not fail with code 120."""
    if stream is None:
        return
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

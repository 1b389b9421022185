"""What every verb of the command line is made of: a parser, options that several verbs share, printing a result."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, get_args

from unicloze.errors import UsageError
from unicloze.settings import Precision


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` instead of exiting, and takes no abbreviations."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **arguments)

    @property
    def takes_words(self) -> bool:
        """Whether it takes words that belong to no option."""
        return bool(self._get_positional_actions())

    def error(self, message: str) -> NoReturn:
        """Raise what argparse found wrong."""
        message = message.replace("argument ", "option ", 1) if message.startswith("argument ") else message
        place = self.prog.removeprefix("unicloze").lstrip()
        raise UsageError(f"{place}{': ' if place else ''}{message}; `{self.prog} --help` shows how.")


@dataclass(frozen=True, kw_only=True)
class Verb:
    """One verb of the command line.

    Args:
        purpose: What it does, in one line.
        examples: Commands that work as they stand.
        options: Adds its own options to a parser.
        run: Does it and prints the result. Called with its options and the overrides; returns the exit code.
        settings: Dotted settings to show in its help; it takes none if there are none.
        prefix: What dotted settings may begin with that are of something else than the recipe; nothing if empty.
    """

    purpose: str
    examples: tuple[str, ...]
    options: Callable[[Parser], None]
    run: Callable[[argparse.Namespace, dict[str, Any]], int]
    settings: tuple[str, ...] = ()
    prefix: str = ""


def recipe_option(parser: Parser, default: str) -> None:
    """`--recipe`."""
    parser.add_argument("--recipe", metavar="NAME|FILE", default=default, help=f"recipe (default: {default})")


def model_option(parser: Parser, required: bool = True) -> None:
    """`--model`."""
    parser.add_argument(
        "--model",
        metavar="DIR",
        required=required,
        help="directory of a run, one of its checkpoints, or a folder of another library's",
    )


def device_option(parser: Parser) -> None:
    """`--device`."""
    parser.add_argument(
        "--device",
        metavar="NAME",
        default="auto",
        help="where to compute: cpu, cuda, cuda:N, or auto, a CUDA device where there is one (default: auto)",
    )


def precision_option(parser: Parser, otherwise: str = "fp32") -> None:
    """`--precision`."""
    parser.add_argument(
        "--precision",
        choices=get_args(Precision),
        help=f"of the forward passes; auto is bf16 where it is faster (default: {otherwise})",
    )


def quiet_option(parser: Parser) -> None:
    """`--quiet`."""
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def json_option(parser: Parser) -> None:
    """`--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def clean(text: str) -> str:
    """Bytes of the command line that are no UTF-8 become U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def show(options: argparse.Namespace, data: Any, text: str) -> None:
    """Print a result, as JSON if that was asked for."""
    print(json.dumps(_finite(data), ensure_ascii=False, allow_nan=False) if options.json else text)


def _finite(data: Any) -> Any:
    """The data with null for what is no finite number, which JSON cannot spell."""
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def debug_option(parser: Parser) -> None:
    """`--debug`."""
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")

"""What unicloze does, one function per verb of the command line: same name, same arguments, results instead of print.

Settings of a recipe are overridden by dotted name: `overrides={"training.steps": 10}` is `--training.steps 10`. Every
result prints as the command shows it (`str`) or holds the data that `--json` prints (`to_dict`). Nothing heavy is imported
before a function needs it.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unicloze.errors import UniclozeError, UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from unicloze.doctor import Examination
    from unicloze.report.example_view import ExampleView
    from unicloze.settings import Recipe
    from unicloze.text.prepare import Prepared
    from unicloze.text.tokenizers import Tokenizer
    from unicloze.training.run import RunResult

PathLike = str | os.PathLike[str]
Overrides = Mapping[str, Any]

DEFAULT_RECIPE = "quickstart"
RUNS = Path("runs")
"""Where runs go that are given no directory, by name of their recipe."""


def prepare(
    recipe: PathLike = DEFAULT_RECIPE,
    out: PathLike | None = None,
    quiet: bool = False,
    overrides: Overrides | None = None,
) -> Prepared:
    """Turn a recipe's corpus into tokens on disk; done before, it is checked and opened.

    Args:
        recipe: Name or file of a recipe; its `data` and `tokenizer` are used.
        out: The folder; `runs/NAME/data` if not given, where `pretrain` looks for it.
        quiet: Show no progress.
        overrides: Settings by dotted name.

    Raises:
        UsageError: The recipe or a setting cannot be.
        UniclozeError: The corpus cannot be read, or the folder holds something else.
    """
    from unicloze.recipes import load_recipe
    from unicloze.text.prepare import prepare_data

    settings = load_recipe(recipe, overrides)
    if settings.data.prepared is not None:
        raise UsageError(
            f"data.prepared is {settings.data.prepared}, a folder prepared before: leave it out to prepare one, or use "
            "it with `unicloze pretrain`."
        )
    folder = RUNS / settings.name / "data" if out is None else Path(out)
    return prepare_data(
        settings.data, settings.tokenizer, folder, progress=not quiet, seed=settings.training.seed
    )


def pretrain(
    recipe: PathLike | None = None,
    out: PathLike | None = None,
    toy: bool = False,
    quiet: bool = False,
    overrides: Overrides | None = None,
) -> RunResult:
    """Pre-train a model, or go on with the run that the directory holds.

    Args:
        recipe: Name or file of a recipe; the one of the run in `out` if not given.
        out: The run's directory; `runs/NAME` if not given.
        toy: Shrink model, vocabulary and run so that any recipe takes two steps on a laptop; `overrides` come after.
        quiet: Show no progress.
        overrides: Settings by dotted name.

    Raises:
        UsageError: The recipe or a setting cannot be, or the directory holds a run with other settings.
        UniclozeError: The corpus, the directory or a checkpoint cannot be used, or the loss is not finite.
    """
    from unicloze.recipes import load_recipe, toy_overrides
    from unicloze.training.allocator import tune_allocator

    if recipe is None:
        if out is None:
            raise UsageError("Give --recipe (`unicloze recipes` lists them), or --out of a run to continue.")
        recipe = Path(out) / "recipe.yaml"
        if not recipe.is_file():
            raise UsageError(f"{out} holds no run to continue: give --recipe too (`unicloze recipes` lists them).")
    settings = load_recipe(recipe, {**(toy_overrides() if toy else {}), **(overrides or {})})
    if out is None:
        out = RUNS / (f"{settings.name}-toy" if toy else settings.name)

    tune_allocator()
    from unicloze.training.run import pretrain_run

    return pretrain_run(settings, Path(out), progress=not quiet)


def inspect(
    text: str,
    recipe: PathLike = DEFAULT_RECIPE,
    seed: int = 0,
    picture: PathLike | None = None,
    out: PathLike | None = None,
    overrides: Overrides | None = None,
) -> ExampleView:
    """Make one example of a text, as the model is fed it.

    The recipe's tokenizer is taken from `tokenizer.path`, `data.prepared` or the run; where none is built yet the text is
    split on white space, and that is said on stderr.

    Args:
        text: Becomes one window; what does not fit is cut off.
        recipe: Name or file of a recipe.
        seed: Names all draws.
        picture: Draw the example into this file too, .svg or .png.
        out: Run or prepared folder to take the tokenizer from; `runs/NAME` if not given.
        overrides: Settings by dotted name.

    Raises:
        UsageError: The recipe or a setting cannot be, or the text is too short.
        UniclozeError: A tokenizer that was named cannot be read, or the picture cannot be written.
    """
    from unicloze.recipes import load_recipe
    from unicloze.report.example_view import ExampleView, inspect_example

    settings = load_recipe(recipe, overrides)
    examples, tokenizer = inspect_example(settings, text, seed, _find_tokenizer(settings, out))
    view = ExampleView.of(examples, tokenizer)
    if picture is not None:
        from unicloze.report.picture import save_picture

        save_picture(view, Path(picture))
    return view


def _find_tokenizer(recipe: Recipe, out: PathLike | None) -> Tokenizer | None:
    """The tokenizer a run of the recipe uses, None if it is not built yet."""
    from unicloze.text.tokenizers import Tokenizer

    if recipe.tokenizer.path is not None:
        return Tokenizer.load(recipe.tokenizer.path, lowercase=recipe.tokenizer.lowercase)
    if recipe.data.prepared is not None:
        return Tokenizer.load(recipe.data.prepared)
    run = RUNS / recipe.name if out is None else Path(out)
    folders = [folder for folder in (run, run / "data") if (folder / "tokenizer.json").is_file()]
    if out is not None and not folders:
        raise UniclozeError(f"{run} holds no tokenizer.json: give the --out of a run or of `unicloze prepare`.")
    return Tokenizer.load(folders[0]) if folders else None

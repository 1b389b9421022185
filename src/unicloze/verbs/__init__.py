"""What unicloze does, one function per verb of the command line: same name, same arguments, results instead of print.

Only `import`, which is no name in Python, is `import_checkpoint`. A function is all that declares a verb: its signature and
docstring are the options and the help (see `unicloze.verbs.options`), its result says how it is printed.

Settings of a recipe are overridden by dotted name: `overrides={"training.steps": 10}` is `--training.steps 10`. Options
that only say how the command prints (`--json`, `--help-settings`) have no argument here: a result is an object that
holds all of it. Nothing heavy is imported before a function needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from unicloze.verbs.about import RecipeSummary, count_parameters, doctor, recipes
from unicloze.verbs.common import DEFAULT_RECIPE, RUNS, Overrides, PathLike
from unicloze.verbs.exporting import export
from unicloze.verbs.importing import import_checkpoint, load_model
from unicloze.verbs.measuring import (
    evaluate_blimp,
    evaluate_cbt,
    evaluate_lambada,
    evaluate_prompt,
    measure,
    measure_task,
    metrics,
)
from unicloze.verbs.pretraining import compare, inspect, prepare, pretrain, report
from unicloze.verbs.tasks import finetune, generate, predict, stream, unanswerable
from unicloze.verbs.use import embed, fill, score

VERBS: Mapping[str, Callable[..., Any]] = {
    "prepare": prepare,
    "pretrain": pretrain,
    "inspect": inspect,
    "compare": compare,
    "report": report,
    "fill": fill,
    "score": score,
    "embed": embed,
    "evaluate blimp": evaluate_blimp,
    "evaluate lambada": evaluate_lambada,
    "evaluate cbt": evaluate_cbt,
    "evaluate prompt": evaluate_prompt,
    "finetune": finetune,
    "predict": predict,
    "generate": generate,
    "measure": measure,
    "measure-task": measure_task,
    "metrics": metrics,
    "unanswerable": unanswerable,
    "import": import_checkpoint,
    "export": export,
    "recipes": recipes,
    "doctor": doctor,
}
"""The function of each verb, in the order of the help."""

INSTEAD: Mapping[str, Mapping[str, Callable[..., Any]]] = {"generate": {"stream": stream}}
"""Switches of verbs with which another function does it."""

__all__ = [
    "DEFAULT_RECIPE",
    "INSTEAD",
    "RUNS",
    "VERBS",
    "Overrides",
    "PathLike",
    "RecipeSummary",
    "compare",
    "count_parameters",
    "doctor",
    "embed",
    "evaluate_blimp",
    "evaluate_cbt",
    "evaluate_lambada",
    "evaluate_prompt",
    "export",
    "fill",
    "finetune",
    "generate",
    "import_checkpoint",
    "inspect",
    "load_model",
    "measure",
    "measure_task",
    "metrics",
    "predict",
    "prepare",
    "pretrain",
    "recipes",
    "report",
    "score",
    "stream",
    "unanswerable",
]

"""The public functions: one per command-line verb, with the same name and arguments, returning results.

The exception is `import_checkpoint` for `import`, a Python keyword. A verb is declared by its function alone: signature and
docstring supply options and help (see `unicloze.verbs.options`), and the result determines how it is printed.

Recipe settings are overridden by dotted name: `overrides={"training.steps": 10}` is `--training.steps 10`. Options that
only affect printing (`--json`, `--help-settings`) have no argument here, since a result object holds everything. Heavy
modules are imported only by the functions that need them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from unicloze.verbs.about import RecipeSummary, count_parameters, doctor, recipes
from unicloze.verbs.comparing import compare
from unicloze.verbs.converting import export, import_checkpoint, load_model
from unicloze.verbs.measuring import (
    evaluate_blimp,
    evaluate_cbt,
    evaluate_lambada,
    evaluate_prompt,
    measure,
    measure_task,
    metrics,
)
from unicloze.verbs.options import DEFAULT_RECIPE, RUNS, Overrides, PathLike
from unicloze.verbs.pretraining import inspect, prepare, pretrain, report
from unicloze.verbs.tasks import finetune, generate, predict, stream, unanswerable
from unicloze.verbs.use import embed, fill, score, serve

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
    "serve": serve,
    "measure": measure,
    "measure-task": measure_task,
    "metrics": metrics,
    "unanswerable": unanswerable,
    "import": import_checkpoint,
    "export": export,
    "recipes": recipes,
    "doctor": doctor,
}
"""Function of each verb, in the order of the help."""

INSTEAD: Mapping[str, Mapping[str, Callable[..., Any]]] = {"generate": {"stream": stream}}
"""For each verb, switches that select another function."""

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
    "serve",
    "stream",
    "unanswerable",
]

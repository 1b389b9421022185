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
from unicloze.verbs.pretraining import compare, inspect, prepare, pretrain, report
from unicloze.verbs.tasks import finetune, generate, predict, stream, unanswerable
from unicloze.verbs.use import embed, export, fill, import_checkpoint, load_model, score, serve

_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    prepare, pretrain, inspect, compare, report, fill, score, embed, evaluate_blimp, evaluate_lambada, evaluate_cbt,
    evaluate_prompt, finetune, predict, generate, serve, measure, measure_task, metrics, unanswerable, import_checkpoint,
    export, recipes, doctor,
)  # fmt: skip


def _name(function: Callable[..., Any]) -> str:
    name = function.__name__.removesuffix("_checkpoint")
    return name.replace("_", " " if name.startswith("evaluate_") else "-")


VERBS: Mapping[str, Callable[..., Any]] = {_name(function): function for function in _FUNCTIONS}
"""Function of each verb, in the order of the help."""

INSTEAD: Mapping[str, Mapping[str, Callable[..., Any]]] = {"generate": {"stream": stream}}
"""For each verb, switches that select another function."""

__all__ = [
    "DEFAULT_RECIPE", "INSTEAD", "RUNS", "VERBS", "Overrides", "PathLike", "RecipeSummary", "compare", "count_parameters",
    "doctor", "embed", "evaluate_blimp", "evaluate_cbt", "evaluate_lambada", "evaluate_prompt", "export", "fill",
    "finetune", "generate", "import_checkpoint", "inspect", "load_model", "measure", "measure_task", "metrics", "predict",
    "prepare", "pretrain", "recipes", "report", "score", "serve", "stream", "unanswerable",
]  # fmt: skip

"""What unicloze does, one function per verb of the command line: same name, same arguments, results instead of print.

Only `import`, which is no name in Python, is `import_checkpoint`.

Settings of a recipe are overridden by dotted name: `overrides={"training.steps": 10}` is `--training.steps 10`. Options
that only say how the command prints (`--json`, `--help-settings`) have no argument here: a result is a dataclass that
holds all of it. Nothing heavy is imported before a function needs it.
"""

from __future__ import annotations

from unicloze.verbs.about import RecipeSummary, count_parameters, doctor, recipes
from unicloze.verbs.common import DEFAULT_RECIPE, RUNS, Overrides, PathLike
from unicloze.verbs.exporting import export
from unicloze.verbs.importing import import_checkpoint, load_model
from unicloze.verbs.pretraining import compare, inspect, prepare, pretrain, report
from unicloze.verbs.tasks import finetune, generate, predict, stream, unanswerable
from unicloze.verbs.use import embed, evaluate, fill, score

__all__ = [
    "DEFAULT_RECIPE",
    "RUNS",
    "Overrides",
    "PathLike",
    "RecipeSummary",
    "compare",
    "count_parameters",
    "doctor",
    "embed",
    "evaluate",
    "export",
    "fill",
    "finetune",
    "generate",
    "import_checkpoint",
    "inspect",
    "load_model",
    "predict",
    "prepare",
    "pretrain",
    "recipes",
    "report",
    "score",
    "stream",
    "unanswerable",
]

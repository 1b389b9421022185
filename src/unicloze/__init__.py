"""unicloze: pre-train and use unified language models, above all UniLMv2's pseudo-masked language model.

    import unicloze

    unicloze.pretrain(recipe="quickstart", out="runs/quickstart")
    print(unicloze.fill(model="runs/quickstart", text="Return a [MASK] of the given list."))

Each command-line verb is a function of `unicloze.verbs` with the same name and arguments. All but `report`,
`recipes` and `doctor`, which are modules of this package, are exported here too. Heavy imports happen on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unicloze.cores import let_threads_sleep
from unicloze.settings import Recipe
from unicloze.verbs import (
    compare,
    embed,
    evaluate_blimp,
    evaluate_cbt,
    evaluate_lambada,
    evaluate_prompt,
    export,
    fill,
    finetune,
    generate,
    import_checkpoint,
    inspect,
    load_model,
    measure,
    measure_task,
    metrics,
    predict,
    prepare,
    pretrain,
    score,
    serve,
    stream,
    unanswerable,
)
from unicloze.version import __version__

if TYPE_CHECKING:
    from unicloze.plugins import register
    from unicloze.recipes import load_recipe

let_threads_sleep()  # nothing above loads torch
LATER = {"load_recipe": "unicloze.recipes", "register": "unicloze.plugins"}
"""Modules that take longer to import than everything else here."""

__all__ = [
    "Recipe", "__version__", "compare", "embed", "evaluate_blimp", "evaluate_cbt", "evaluate_lambada",
    "evaluate_prompt", "export", "fill", "finetune", "generate", "import_checkpoint", "inspect", "load_model",
    "load_recipe", "measure", "measure_task", "metrics", "predict", "prepare", "pretrain", "register", "score",
    "serve", "stream", "unanswerable",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in LATER:
        return getattr(importlib.import_module(LATER[name]), name)
    raise AttributeError(f"module 'unicloze' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__

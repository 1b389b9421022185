"""unicloze: pre-train and use unified language models, above all UniLMv2's pseudo-masked language model.

    import unicloze

    unicloze.pretrain(recipe="quickstart", out="runs/quickstart")
    print(unicloze.fill(model="runs/quickstart", text="Return a [MASK] of the given list."))

Each command-line verb is a function of `unicloze.verbs` with the same name and arguments. All but `report`,
`recipes` and `doctor`, which are modules of this package, are exported here too. Heavy imports happen on first use.
"""

from __future__ import annotations

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
    stream,
    unanswerable,
)
from unicloze.version import __version__

if TYPE_CHECKING:
    from unicloze.plugins import register
    from unicloze.recipes import load_recipe

let_threads_sleep()  # nothing above loads torch

__all__ = [
    "Recipe",
    "__version__",
    "compare",
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
    "load_recipe",
    "measure",
    "measure_task",
    "metrics",
    "predict",
    "prepare",
    "pretrain",
    "register",
    "score",
    "stream",
    "unanswerable",
]


def __getattr__(name: str) -> Any:
    if name == "load_recipe":  # importing the YAML parser takes longer than everything else here
        from unicloze.recipes import load_recipe

        return load_recipe
    if name == "register":
        from unicloze.plugins import register

        return register
    raise AttributeError(f"module 'unicloze' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__

"""unicloze: pre-train and use unified language models, above all UniLMv2's pseudo-masked language model.

    import unicloze

    unicloze.pretrain(recipe="quickstart", out="runs/quickstart")
    print(unicloze.fill(model="runs/quickstart", text="Return a [MASK] of the given list."))

Each verb of the command line is a function of `unicloze.verbs` with the same name and arguments. All but `report`,
`recipes` and `doctor`, which are rooms of this package, are here as well. Nothing heavy is imported before it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unicloze.recipes import load_recipe
    from unicloze.settings import Recipe
    from unicloze.verbs import (
        compare,
        embed,
        evaluate,
        export,
        fill,
        finetune,
        generate,
        import_checkpoint,
        inspect,
        load_model,
        predict,
        prepare,
        pretrain,
        score,
        stream,
        unanswerable,
    )

__version__ = "0.1.0"

__all__ = [
    "Recipe",
    "__version__",
    "compare",
    "embed",
    "evaluate",
    "export",
    "fill",
    "finetune",
    "generate",
    "import_checkpoint",
    "inspect",
    "load_model",
    "load_recipe",
    "predict",
    "prepare",
    "pretrain",
    "score",
    "stream",
    "unanswerable",
]

_HOMES = {
    "Recipe": "unicloze.settings",
    "load_recipe": "unicloze.recipes",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'unicloze' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES.get(name, "unicloze.verbs")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

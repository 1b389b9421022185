"""Run a toy pre-training that kills itself, without any clean-up, at a named moment. Used by test_resume.py and
test_storage.py.

    python killable.py RECIPE_OVERRIDES_JSON OUT MOMENT COUNT

MOMENT is `never`, `micro-batch`, `update`, `checkpoint-file` (after the weights are written), `checkpoint-manifest` (all
written, not renamed), `checkpoint-renamed` or `copied-file` (after a file is copied to a file:// URL); the process is killed
at its COUNT-th occurrence.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    overrides, out, moment, count = json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    from unicloze.pretraining import run
    from unicloze.recipes import load_recipe, toy_overrides
    from unicloze.training import checkpoint, loop

    seen = 0

    def die_at(name: str) -> None:
        nonlocal seen
        seen += name == moment
        if name == moment and seen == count:
            os.kill(os.getpid(), signal.SIGKILL)

    def wrap(module: Any, name: str, after: str) -> None:
        original = getattr(module, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            die_at(after)
            return result

        setattr(module, name, wrapped)

    wrap(loop, "with_memory", "micro-batch")
    wrap(loop, "set_learning_rate", "update")
    wrap(checkpoint, "save_file", "checkpoint-file")
    with contextlib.suppress(ImportError):
        wrap(importlib.import_module("fsspec.implementations.local").LocalFileSystem, "put_file", "copied-file")
    original_rename = Path.rename

    def rename(self: Path, target: Any) -> Any:
        if self.name.startswith(".building-step"):
            die_at("checkpoint-manifest")
        result = original_rename(self, target)
        if self.name.startswith(".building-step"):
            die_at("checkpoint-renamed")
        return result

    Path.rename = rename  # type: ignore[method-assign, assignment]
    run.pretrain_run(load_recipe("quickstart", toy_overrides() | overrides), out, progress=False)


main()

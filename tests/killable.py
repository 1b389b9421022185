"""A toy pre-training that sends itself a signal, SIGKILL unless told, at a named moment. Used by test_resume.py.

A moment is `never`, `micro-batch`, `update`, `checkpoint-file` (after the weights are written), `checkpoint-manifest` (all
written, not renamed), `checkpoint-renamed`, `copied-file` (after a file is copied to a file:// URL) or `call` (of a Python
function, from the first micro-batch on). By events, not by time: a slow machine sees the same.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

SERVER = multiprocessing.get_context("forkserver")
"""Starts processes from one that has imported what a run needs, which takes seconds."""
SERVER.set_forkserver_preload(
    ["torch._dynamo", "torch._inductor", "fsspec.implementations.local", "unicloze.pretraining.run"]
)


def start(
    overrides: dict[str, Any], out: Path, moment: str, count: int, said: Path, sends: signal.Signals = signal.SIGKILL
) -> BaseProcess:
    """Start a run; it writes its output to a file and sends itself a signal at the `count`-th occurrence of a moment."""
    process = SERVER.Process(target=_run, args=(overrides, out, moment, count, said, sends))
    process.start()
    return process


def _run(overrides: dict[str, Any], out: Path, moment: str, count: int, said: Path, sends: signal.Signals) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with said.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    from unicloze.pretraining import run
    from unicloze.recipes import load_recipe, toy_overrides
    from unicloze.training import checkpoint, loop

    seen = 0

    def die_at(name: str) -> None:
        nonlocal seen
        seen += name == moment
        if name == moment and seen == count:
            os.kill(os.getpid(), sends)

    def called(_frame: Any, event: str, _value: Any) -> None:
        if event == "call":
            die_at("call")

    def wrap(module: Any, name: str, after: str) -> None:
        original = getattr(module, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            die_at(after)
            if moment == "call":
                sys.setprofile(called)
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

"""Short pre-trainings and fine-tunings of which a benchmark keeps the figures."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unicloze import verbs
from unicloze.files import LEDGER
from unicloze.finetuning.data import open_records
from unicloze.finetuning.predict import predict
from unicloze.finetuning.scores import measure
from unicloze.interop.read import open_model
from unicloze.report.history import History
from unicloze.training.ledger import read_ledger

CAUSAL = {"name": "causal", "targets": ["lm"], "visibility": "left_to_right", "mixture": [], "coefficients": {}}
"""Objective of a causal phase."""


def trained(
    run: Path, budget: str, overrides: Mapping[str, Any], init: str | None = None, threads: int = 1
) -> dict[str, Any]:
    """Train with `--recipe auto` into a folder, or go on with it, and read its figures.

    Raises:
        SystemExit: if a signal stopped the training.
    """
    pretrain("auto", run, init=init, budget=budget, overrides={"training.threads": threads, **overrides})
    return figures(run)


def pretrain(recipe: str, run: Path, **given: Any) -> None:
    """`unicloze pretrain`.

    Raises:
        SystemExit: if a signal stopped the training.
    """
    if getattr(verbs.pretrain(recipe, run, quiet=True, **given), "stopped_by", 0):
        raise SystemExit("stopped; the same command continues")


def finished(run: Path) -> bool:
    """Whether a run is there and came to its end."""
    events = read_ledger(run / LEDGER) if (run / LEDGER).is_file() else []
    return any(event["event"] == "end" for event in events)


def figures(run: Path) -> dict[str, Any]:
    """The held-out figures of a finished run; content words in percent."""
    history = History.read(run)
    last, words = history.evaluations[history.step], history.content_words
    return {
        "parameters": history.start["parameters"],
        "steps": history.step,
        "text_tokens": round(history.curve("text_tokens")[-1][1]),
        "bits_per_byte": {
            name: math.nan if value is None else round(value, 4) for name, value in last["bits_per_byte"].items()
        },
        "perplexity": {name: round(value, 1) for name, value in last["perplexity"].items()},
        "trigram": {name: round(counts["trigram"], 1) for name, counts in history.counts.items()},
        "content_words": {name: round(100 * words[name], 1) for name in ("top_5", "counts_top_5")} if words else {},
        "verdict": history.verdict,
        "seconds": round(history.seconds),
    }


def finetuned(task: str, model: Path, files: tuple[Path, Path], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fine-tune a model on the first file, and score its last step on the second.

    Raises:
        SystemExit: if a signal stopped the training.
    """
    began, processor = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as name:
        if verbs.finetune(task, model, files[0], None, name, quiet=True, overrides=settings).exit_code:
            raise SystemExit("stopped; the same command continues")
        tuned = open_model(Path(name), settings.get("training.device"))
        data = open_records(files[1], tuned.recipe, tuned.tokenizer)
        results = measure(predict(tuned, data), data.records, tuned.recipe)
    return {
        "learning rate": tuned.recipe.training.learning_rate,
        "scores": {name: value for result in results.values() for name, value in result.values.items()},
        "seconds": round(time.perf_counter() - began, 1),
        "cpu seconds": round(time.process_time() - processor, 1),
    }

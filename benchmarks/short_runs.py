"""Short pre-trainings and fine-tunings of which a benchmark keeps the figures.

    python benchmarks/short_runs.py RESULTS TEXT SETTING=VALUE...    # add the trigram of a text to its lines in RESULTS

The settings are those of the runs: text, tokenizer and windows, from which `--recipe auto` holds out the same predictions.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from json_lines import read_lines
from unicloze import verbs
from unicloze.files import LEDGER
from unicloze.finetuning.data import open_records
from unicloze.finetuning.predict import predict
from unicloze.finetuning.scores import measure
from unicloze.interop.read import open_model
from unicloze.mixtures import phases
from unicloze.pretraining.automatic import NAME, choose
from unicloze.pretraining.budget import Budget
from unicloze.pretraining.count_baselines import open_baselines
from unicloze.pretraining.data import build_sampler
from unicloze.recipes import load_recipe
from unicloze.report.history import History
from unicloze.text.prepare import open_or_prepare
from unicloze.training.batches import heldout_examples
from unicloze.training.ledger import read_ledger

CAUSAL = {"name": "causal", "targets": ["lm"], "visibility": "left_to_right", "mixture": [], "coefficients": {}}
"""Objective of a causal phase."""


def trained(run: Path, budget: str, overrides: Mapping[str, Any], init: str | None = None) -> dict[str, Any]:
    """Train with `--recipe auto` and one thread into a folder, or go on with it, and read its figures.

    Raises:
        SystemExit: if a signal stopped the training.
    """
    pretrain("auto", run, init=init, budget=budget, overrides={"training.threads": 1, **overrides})
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
        "bits_per_byte": {name: round(value, 4) for name, value in last["bits_per_byte"].items()},
        "perplexity": {name: round(value, 1) for name, value in last["perplexity"].items()},
        "trigram": {name: round(counts["trigram"], 1) for name, counts in history.counts.items()},
        "content_words": {name: round(100 * words[name], 1) for name in ("top_5", "counts_top_5")} if words else {},
        "verdict": history.verdict,
        "seconds": round(history.seconds),
    }


def add_trigram(results: Path, text: str, overrides: Mapping[str, Any]) -> dict[str, float]:
    """Add what a Kneser-Ney trigram reaches on the same predictions to the lines of runs from scratch on a text."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        choice = choose(overrides, Budget.parse("flops=1e12"), folder, progress=False)
        recipe = phases(load_recipe(NAME, {**choice.settings, **overrides}))[-1].recipe
        prepared = open_or_prepare(recipe.data, recipe.tokenizer, folder / "data", progress=False)
        training, heldout = recipe.training, build_sampler(recipe, prepared, heldout=True)
        lanes = training.micro_batch_size or training.batch_size
        blocks = heldout_examples(heldout, recipe.objective, training.evaluate_windows, lanes=lanes)
        found = open_baselines(recipe, prepared, folder, blocks)
    assert found is not None
    trigram = {name: round(kinds["trigram"], 1) for name, kinds in found.perplexities.items()}
    trigram["top_5"] = round(100 * sum(rank < 5 for rank in found.ranks) / max(1, len(found.ranks)), 1)
    lines = [
        {**line, "trigram": trigram} if line["text"] == text and line.get("start", "scratch") == "scratch" else line
        for line in read_lines(results)
    ]
    results.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return trigram


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


if __name__ == "__main__":
    values = {name: yaml.safe_load(value) for name, _, value in (word.partition("=") for word in sys.argv[3:])}
    print(add_trigram(Path(sys.argv[1]), sys.argv[2], values))

"""Short pre-trainings of which a benchmark keeps the figures of the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unicloze import verbs
from unicloze.report.history import History

CAUSAL = {"name": "causal", "targets": ["lm"], "visibility": "left_to_right", "mixture": [], "coefficients": {}}
"""Objective of a causal phase."""


def trained(run: Path, budget: str, overrides: Mapping[str, Any], init: str | None = None) -> dict[str, Any]:
    """Train with `--recipe auto` and one thread into a folder, or go on with it, and read its figures.

    Raises:
        SystemExit: if a signal stopped the training.
    """
    result = verbs.pretrain(
        "auto", run, init=init, budget=budget, quiet=True, overrides={"training.threads": 1, **overrides}
    )
    if getattr(result, "stopped_by", 0):
        raise SystemExit("stopped; the same command continues")
    return figures(run)


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
        "counts": {name: round(value, 1) for name, value in history.counts.items()},
        "content_words": {name: round(100 * words[name], 1) for name in ("top_5", "counts_top_5")} if words else {},
        "verdict": history.verdict,
        "seconds": round(history.seconds),
    }

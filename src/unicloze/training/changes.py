"""Checks that a run is resumed with settings that may change."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from unicloze.errors import UsageError
from unicloze.recipes.unread_settings import DECIDED_IN_A_TASK
from unicloze.settings import Recipe

FREE_TO_CHANGE = {
    "name",
    "data.corpus",
    "data.prepared",
    "tokenizer.path",
    "training.steps",
    "training.device",
    "training.threads",
    "training.checkpoint_activations",
    "training.compile",
    "training.parallel",
    "training.log_every",
    "training.save_every",
    "training.evaluate_every",
    "training.evaluate_windows",
    "training.keep_checkpoints",
    "training.copy_to",
    "training.initialize_from",
    "training.word_vectors",
    "distillation.teacher",
}
"""Settings that may change when a run is resumed; any other change would make it a different run.

Corpus, tokenizer and teacher may have moved; the fingerprint decides whether they are the same.
"""
FREE_AFTER_DIVERGENCE = {
    "training.learning_rate",
    "training.muon_learning_rate",
    "training.clip_norm",
    "training.on_spike",
    "training.spike_factor",
}
"""Settings that may also change when resuming a run stopped by a non-finite number. Each start records its settings."""
FREE_AFTER_OUT_OF_MEMORY = {"training.micro_batch_size"}
"""Settings that may also change when resuming a run that ran out of memory, for the rest of the run."""


def free_after(kind: str | None) -> frozenset[str]:
    """Settings that may change because of the error that stopped a run."""
    more = {"NonFiniteError": FREE_AFTER_DIVERGENCE, "OutOfMemoryError": FREE_AFTER_OUT_OF_MEMORY}
    return frozenset(FREE_TO_CHANGE | more.get(kind or "", set()))


def refuse_changes(
    former: Recipe, recipe: Recipe, out: Path, instead: str, *, free: Collection[str] = frozenset(FREE_TO_CHANGE)
) -> None:
    """Refuse to resume a run with other settings."""
    old, new = _flat(former.to_dict()), _flat(recipe.to_dict())
    keys = {**new, **old}  # keys of a mapping may have been removed or added
    changed = [key for key in keys if old.get(key) != new.get(key) and key not in free]
    changed = [key for key in changed if not key.startswith("provenance.")]
    if recipe.task.kind:
        changed = [key for key in changed if key not in DECIDED_IN_A_TASK] or changed  # these determine the others
    if changed:
        first = changed[0]
        others = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise UsageError(
            f"{out} holds a run with {first} {old.get(first)}, but this one has {new.get(first)}{others}: give the new run "
            f"another --out, or {instead}"
        )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and key != "coefficients":
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = list(value) if isinstance(value, tuple) else value
    return flat

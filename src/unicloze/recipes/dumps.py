"""Reads recipes of runs of earlier versions, which contain the settings of all objectives and tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unicloze.recipes.schema import KEYS, VARIED, Setting, keys_of

SCHEMA = 2
"""Schema version of written recipes, which contain only the settings of their own objective and task."""

FORMER: Mapping[str, tuple[str, ...]] = {
    "objective": (
        "name", "targets", "masking", "mask_unit", "mask_rate", "final_mask_rate", "block_probability", "max_span",
        "geometric_p", "factorization", "masks_in_context", "pseudo_token", "mask_share", "random_share",
        "corruption_unit", "visibility", "local_width", "segment_ids", "pairs", "static_copies", "mean_span", "noise",
        "mode_token", "block_size", "mixture", "coefficients",
    ),
    "task": (
        "kind", "format", "fields", "optional", "labels", "metrics", "max_length", "head", "pooling", "head_dropout",
        "delimiter", "both_orders", "predicate", "max_question", "stride", "max_answer", "n_best", "unanswerable",
        "no_answer_threshold", "metric_options", "evaluate_records",
    ),
}  # fmt: skip
"""Settings that all objectives, and all tasks, once shared."""
READ_BY_ALL = {"objective.pairs": "contiguous"}
"""Former settings that affected the windows of every objective, and the value that had no effect."""


def is_of_a_run(settings: Mapping[str, Setting]) -> bool:
    """Whether a run of an earlier version wrote the settings: it wrote those of every objective and task."""
    return any(settings.keys() >= {f"{section}.{name}" for name in FORMER[section]} for section in VARIED)


def without_foreign(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """The settings of a file; if an earlier version wrote it, without those of other objectives and tasks.

    The removed settings had no effect.
    """
    kept = dict(settings)
    for section, (_, key) in VARIED.items():
        if not settings.keys() >= {f"{section}.{name}" for name in FORMER[section]}:
            continue
        own = settings[f"{section}.{key}"].value
        kept = {one: setting for one, setting in kept.items() if _is_own(one, setting.value, section, own)}
        if section == "objective":
            for one, pruned in (("objective.mixture", _part), ("training.phases", _phase)):
                if one in kept and isinstance(kept[one].value, list):
                    kept[one] = kept[one]._replace(value=[pruned(entry, own) for entry in kept[one].value])
    return kept


def _is_own(key: str, value: Any, section: str, own: Any) -> bool:
    """Whether to keep a setting: the objective or task has it, or it had an effect, or it belongs to another section."""
    registry, _ = VARIED[section]
    if key in KEYS or key.partition(".")[2] not in FORMER[section] or not key.startswith(f"{section}."):
        return True
    if own == "":
        return False
    if not isinstance(own, str) or own not in registry:
        return True
    return key in keys_of(section, registry[own].settings) or value != READ_BY_ALL.get(key, value)


def _part(entry: Any, name: str) -> Any:
    if not isinstance(entry, Mapping):
        return entry
    own = entry.get("name", name)
    return {key: value for key, value in entry.items() if _is_own(f"objective.{key}", value, "objective", own)}


def _phase(entry: Any, name: str) -> Any:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("objective"), Mapping):
        return entry
    changes = entry["objective"]
    own = changes.get("name", name)
    kept = _part(changes, name)
    if isinstance(kept.get("mixture"), list):
        kept["mixture"] = [_part(each, own) for each in kept["mixture"]]
    return {**entry, "objective": kept}

"""Recipes that earlier versions wrote into runs: each holds the settings of all objectives, whatever its own is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unicloze.objectives import OBJECTIVES
from unicloze.recipes.schema import KEYS, Setting, keys_of

SCHEMA = 2
"""What a recipe that is written now says of its form: it holds the settings of its own objective only."""

FORMER = frozenset(
    f"objective.{name}"
    for name in (
        "name", "targets", "masking", "mask_unit", "mask_rate", "final_mask_rate", "block_probability", "max_span",
        "geometric_p", "factorization", "masks_in_context", "pseudo_token", "mask_share", "random_share",
        "corruption_unit", "visibility", "local_width", "segment_ids", "pairs", "static_copies", "mean_span", "noise",
        "mode_token", "block_size", "mixture", "coefficients",
    )
)  # fmt: skip
"""The settings of `objective` that all objectives once had in common."""
READ_BY_ALL = {"objective.pairs": "contiguous"}
"""Of these what changed the windows of every objective, and the value that did not."""


def without_foreign(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """The settings of a file, without those of other objectives if an earlier version wrote it: they had no effect."""
    if not settings.keys() >= FORMER:
        return dict(settings)
    name = settings["objective.name"].value
    kept = {key: one for key, one in settings.items() if _is_own(key, one.value, name)}
    for key, own in (("objective.mixture", _part), ("training.phases", _phase)):
        if key in kept and isinstance(kept[key].value, list):
            kept[key] = kept[key]._replace(value=[own(entry, name) for entry in kept[key].value])
    return kept


def _is_own(key: str, value: Any, name: Any) -> bool:
    """Whether an objective has a setting, or had it and it changed something."""
    if key not in FORMER or key in KEYS or not isinstance(name, str) or name not in OBJECTIVES:
        return True
    return key in keys_of("objective", OBJECTIVES[name].settings) or value != READ_BY_ALL.get(key, value)


def _part(entry: Any, name: str) -> Any:
    if not isinstance(entry, Mapping):
        return entry
    own = entry.get("name", name)
    return {key: value for key, value in entry.items() if _is_own(f"objective.{key}", value, own)}


def _phase(entry: Any, name: str) -> Any:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("objective"), Mapping):
        return entry
    changes = entry["objective"]
    own = changes.get("name", name)
    kept = _part(changes, name)
    if isinstance(kept.get("mixture"), list):
        kept["mixture"] = [_part(each, own) for each in kept["mixture"]]
    return {**entry, "objective": kept}

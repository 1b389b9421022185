"""Expands a recipe's lists of changes: the parts of a mixture of objectives and the phases of a run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from unicloze.objectives import changed
from unicloze.objectives.groups import Masking
from unicloze.settings import ObjectiveSettings, Recipe


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a mixture of objectives."""

    label: str  # its name in the ledger and in reports
    share: float  # its share of the rows of every step
    evaluate: bool  # whether it is evaluated on held-out text
    settings: ObjectiveSettings  # its settings, without a mixture


PART_KEYS = "share", "label", "evaluate"
"""Keys that an entry of `ObjectiveSettings.mixture` may have besides settings."""


def parts(objective: ObjectiveSettings) -> list[Part]:
    """The parts of a mixture, or the objective itself as the only one."""
    entries = objective.mixture or [{}]
    total = sum(float(entry.get("share", 1)) for entry in entries)
    found = []
    for entry in entries:
        changes = {key: value for key, value in entry.items() if key not in PART_KEYS}
        settings = changed(objective, {**changes, "mixture": []})
        share, label = float(entry.get("share", 1)) / total, entry.get("label", settings.name)
        found.append(Part(label=label, share=share, evaluate=entry.get("evaluate", True), settings=settings))
    return found


def describe(objective: ObjectiveSettings) -> str:
    """Names and targets of the parts, as in UniLMv2's Table 6: `par` with steps of one token is `ar`."""
    said: dict[str, None] = {}
    for part in parts(objective):
        settings = part.settings
        single = isinstance(settings, Masking) and settings.single_tokens
        targets = ["ar" if name == "par" and single else name for name in settings.targets]
        said[f"{settings.name} {'+'.join(targets)}"] = None
    return ", ".join(said)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A range of steps of a run with its own settings."""

    first_step: int  # steps of the run before the phase
    last_step: int  # steps of the run once the phase ends
    first_window: int  # windows read before the phase
    recipe: Recipe  # the recipe of this phase, without phases


PHASE_SETTINGS = "data.window", "training.batch_size", "training.micro_batch_size"
"""Settings that may change over time, besides the objective's."""


def phases(recipe: Recipe) -> list[Phase]:
    """The phases of a run in order; they cover all steps."""
    entries = recipe.training.phases or [{}]
    shares = [float(entry.get("share", 1)) for entry in entries]
    found: list[Phase] = []
    step = window = 0
    for number, entry in enumerate(entries):
        last = round(recipe.training.steps * sum(shares[: number + 1]) / sum(shares))
        of_phase = dataclasses.replace(recipe, objective=changed(recipe.objective, entry.get("objective", {})))
        of_phase = of_phase.changed("data", **entry.get("data", {}))
        of_phase = of_phase.changed("training", **entry.get("training", {}), phases=[])
        found.append(Phase(first_step=step, last_step=last, first_window=window, recipe=of_phase))
        window += (last - step) * of_phase.training.batch_size
        step = last
    return found


def all_targets(recipe: Recipe) -> list[str]:
    """Every target of every part of every phase, each once."""
    names = [part.settings.targets for phase in phases(recipe) for part in parts(phase.recipe.objective)]
    return list(dict.fromkeys(name for targets in names for name in targets))


def longest_window(recipe: Recipe) -> int:
    """The longest window of any phase."""
    return max(phase.recipe.data.window for phase in phases(recipe))


def longest_row(recipe: Recipe) -> int:
    """Rows of the position table that a recipe needs, over all parts of all phases."""
    return max(
        positions(part.settings, phase.recipe.data.window)
        for phase in phases(recipe)
        for part in parts(phase.recipe.objective)
    )


def positions(objective: ObjectiveSettings, window: int) -> int:
    """Rows of the position table that an objective needs: at least one per token of a window, to encode text."""
    return max(window, objective.bounds(window).positions)

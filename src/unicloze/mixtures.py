"""Parts of a mixture of objectives, and phases of a run: what a recipe's lists of changes mean."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from unicloze.objectives import changed
from unicloze.objectives.groups import Masking
from unicloze.settings import ObjectiveSettings, Recipe


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a mixture of objectives.

    Args:
        label: What to call it.
        share: Its share of the rows of every step.
        evaluate: Whether it is measured on held-out text.
        settings: Its settings, themselves no mixture.
    """

    label: str
    share: float
    evaluate: bool
    settings: ObjectiveSettings


PART_KEYS = "share", "label", "evaluate"
"""What an entry of `ObjectiveSettings.mixture` may hold beside settings."""


def parts(objective: ObjectiveSettings) -> list[Part]:
    """The parts of a mixture, or the objective itself as the only one."""
    entries = objective.mixture or [{}]
    total = sum(float(entry.get("share", 1)) for entry in entries)
    found = []
    for entry in entries:
        changes = {key: value for key, value in entry.items() if key not in PART_KEYS}
        settings = changed(objective, {**changes, "mixture": []})
        share = float(entry.get("share", 1)) / total
        found.append(
            Part(
                label=entry.get("label", settings.name),
                share=share,
                evaluate=entry.get("evaluate", True),
                settings=settings,
            )
        )
    return found


def describe(objective: ObjectiveSettings) -> str:
    """Names and targets of its parts, as UniLMv2's Table 6 names them: `par` by steps of one token is `ar`."""
    said: dict[str, None] = {}
    for part in parts(objective):
        settings = part.settings
        single = isinstance(settings, Masking) and settings.single_tokens
        targets = ["ar" if name == "par" and single else name for name in settings.targets]
        said[f"{settings.name} {'+'.join(targets)}"] = None
    return ", ".join(said)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of a run with settings of its own.

    Args:
        first_step: Steps done before it.
        last_step: Steps done after it.
        first_window: Windows read before it.
        recipe: The recipe as it holds in this phase, itself without phases.
    """

    first_step: int
    last_step: int
    first_window: int
    recipe: Recipe


PHASE_SETTINGS = "data.window", "training.batch_size", "training.micro_batch_size"
"""What may change over time beside the objective."""


def phases(recipe: Recipe) -> list[Phase]:
    """The phases of a run in order; they cover all its steps."""
    entries = recipe.training.phases or [{}]
    shares = [float(entry.get("share", 1)) for entry in entries]
    found: list[Phase] = []
    step = window = 0
    for number, entry in enumerate(entries):
        last = round(recipe.training.steps * sum(shares[: number + 1]) / sum(shares))
        of_phase = dataclasses.replace(
            recipe,
            data=dataclasses.replace(recipe.data, **entry.get("data", {})),
            objective=changed(recipe.objective, entry.get("objective", {})),
            training=dataclasses.replace(recipe.training, **entry.get("training", {}), phases=[]),
        )
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
    """Rows of the position table that all parts of all phases of a recipe need."""
    return max(
        positions(part.settings, phase.recipe.data.window)
        for phase in phases(recipe)
        for part in parts(phase.recipe.objective)
    )


def positions(objective: ObjectiveSettings, window: int) -> int:
    """Rows of the position table that an objective needs; the source of a window is encoded in as many as it has tokens."""
    return max(window, objective.bounds(window).positions)

"""The abilities a model's objective defines; for a mixture, those of its parts."""

from __future__ import annotations

from unicloze.mixtures import parts, phases
from unicloze.objectives import OBJECTIVES, Ability, defined
from unicloze.settings import ObjectiveSettings, Reading, Recipe

__all__ = ["Ability", "lacks", "objective_of", "part_with", "read_as"]


def objective_of(recipe: Recipe) -> ObjectiveSettings:
    """The objective a model was trained with: that of the last phase."""
    return phases(recipe)[-1].recipe.objective


def read_as(recipe: Recipe) -> Reading:
    """How a model reads an unmasked text, in the direction set by its recipe.

    Segments and the width of local attention are those of the part of the objective that reads in that direction, or of
    its first part if none does.
    """
    wanted = recipe.use.visibility
    found = [part.settings.reading for part in parts(objective_of(recipe))]
    reading = next((one for one in found if one.visibility == wanted), found[0])
    width = reading.local_width if wanted == "left_to_right" else None
    return reading._replace(visibility=wanted, local_width=width)


def part_with(objective: ObjectiveSettings, ability: Ability) -> ObjectiveSettings | None:
    """Settings of the first part of an objective that defines an ability; None if no part does."""
    able = (part.settings for part in parts(objective) if getattr(defined(part.settings), ability) is not None)
    return next(able, None)


def lacks(objective: ObjectiveSettings, ability: Ability, what: str) -> str:
    """Why a model cannot do something, as a sentence without a full stop.

    Args:
        objective: An objective that does not define the ability.
        ability: The missing ability.
        what: What it would be used for, as in "a pseudo-log-likelihood".
    """
    names = dict.fromkeys(_name(part.settings, ability) for part in parts(objective))
    if len(names) > 1:
        return f"none of the objectives {', '.join(names)} defines {what}"
    return f"the objective {next(iter(names))} does not define {what}"


def _name(settings: ObjectiveSettings, ability: Ability) -> str:
    """Name of the objective, with its targets if other targets would define the ability."""
    if getattr(OBJECTIVES[settings.name], ability) is None:
        return settings.name
    return f"{settings.name} with the target{'s' * (len(settings.targets) > 1)} {' and '.join(settings.targets)}"

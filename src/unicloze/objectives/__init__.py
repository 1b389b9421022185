"""Training objectives: turn windows into examples by deciding what is masked, visible and predicted.

An objective is a few functions and their settings in one module, listed in `OBJECTIVES` here. Importing this package
imports none of these modules.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from unicloze.objectives.objective import Ability, LayOut, Objective
from unicloze.registry import Registry
from unicloze.settings import ObjectiveSettings

if TYPE_CHECKING:
    from unicloze.example import Examples
    from unicloze.objectives.masking import Rates
    from unicloze.text.vocabulary import Vocabulary
    from unicloze.text.windows import Windows

__all__ = [
    "OBJECTIVES",
    "Ability",
    "LayOut",
    "Objective",
    "changed",
    "defined",
    "field_names",
    "make_examples",
    "settings_of",
]

OBJECTIVES: Registry[Objective[Any]] = Registry(
    "objective",
    "OBJECTIVES",
    {
        "unilmv2": "unicloze.objectives.unilmv2",
        "masked": "unicloze.objectives.masked",
        "causal": "unicloze.objectives.causal",
        "bidirectional_lm": "unicloze.objectives.causal",
        "masked_diffusion": "unicloze.objectives.diffusion",
        "block_diffusion": "unicloze.objectives.diffusion",
        "prefix": "unicloze.objectives.seq2seq",
        "span_corruption": "unicloze.objectives.denoising",
        "denoising": "unicloze.objectives.denoising",
        "masked_span": "unicloze.objectives.denoising",
        "permuted": "unicloze.objectives.permuted",
        "compensated": "unicloze.objectives.permuted",
        "none": "unicloze.objectives.masked",
    },
)
"""Every objective, by `objective.name`."""


def settings_of(name: str = "unilmv2", **values: Any) -> Any:
    """Settings of an objective, as an instance of its own class.

    Args:
        name: The objective.
        values: Settings that differ from the defaults.
    """
    return OBJECTIVES[name].settings(name=name, **values)


def changed(settings: ObjectiveSettings, changes: dict[str, Any]) -> ObjectiveSettings:
    """Settings with some values changed. If the name changes, settings that both objectives have are kept."""
    kind = OBJECTIVES[changes.get("name", settings.name)].settings
    if type(settings) is kind:
        return dataclasses.replace(settings, **changes)
    common = field_names(type(settings)) & field_names(kind)
    made: ObjectiveSettings = kind(**{name: getattr(settings, name) for name in common} | changes)
    return made


def field_names(kind: type[ObjectiveSettings]) -> set[str]:
    """Names of the settings of a class."""
    return {field.name for field in dataclasses.fields(kind)}


def make_examples(
    windows: Windows, vocabulary: Vocabulary, settings: ObjectiveSettings, rates: Rates | None = None
) -> Examples:
    """Training rows with all targets of the settings.

    Args:
        windows: The text.
        vocabulary: Ids of the masks and candidates for random tokens.
        settings: What to mask, predict and show.
        rates: Mask rate of each row; default: that of the settings. *Shape:* (rows,)
    """
    return OBJECTIVES[settings.name].make(windows, vocabulary, settings, rates)


def defined(settings: ObjectiveSettings) -> Objective[Any]:
    """The objective, restricted to the abilities of a model trained with these settings."""
    objective = OBJECTIVES[settings.name]
    if objective.defines is None:
        return objective
    has = objective.defines(settings)
    return dataclasses.replace(
        objective,
        cloze=objective.cloze if "cloze" in has else None,
        stepwise=objective.stepwise if "stepwise" in has else None,
        causal=objective.causal if "causal" in has else None,
    )

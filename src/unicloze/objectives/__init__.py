"""Windows to examples: what is masked, who may read whom, what is predicted.

An objective is a few functions and the settings they read, together in one module, named in `OBJECTIVES` here. Importing
this package imports none of them.
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
    from unicloze.text.tokenizers import Vocabulary
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
        "masked_diffusion": "unicloze.objectives.diffusion",
        "block_diffusion": "unicloze.objectives.diffusion",
        "prefix": "unicloze.objectives.seq2seq",
        "span_corruption": "unicloze.objectives.denoising",
        "denoising": "unicloze.objectives.denoising",
        "masked_span": "unicloze.objectives.denoising",
        "permuted": "unicloze.objectives.permuted",
        "compensated": "unicloze.objectives.permuted",
        "none": "unicloze.objectives.untrained",
    },
)
"""Every objective, by `objective.name`."""


def settings_of(name: str = "unilmv2", **values: Any) -> Any:
    """Settings of an objective of its own class.

    Args:
        name: The objective.
        values: Those that differ from the defaults.

    Raises:
        UsageError: There is no such objective.
        TypeError: It has no such setting.
    """
    return OBJECTIVES[name].settings(name=name, **values)


def changed(settings: ObjectiveSettings, changes: dict[str, Any]) -> ObjectiveSettings:
    """Settings with some values changed. If one of them is the name, what the new objective has too is kept."""
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
    """Rows to train on, with all targets the settings name.

    Args:
        windows: The text.
        vocabulary: Ids of the masks and of the tokens a random one is drawn from.
        settings: What to mask, predict and show.
        rates: Mask rate of each row; that of the settings if not given. *Shape:* (rows,)
    """
    return OBJECTIVES[settings.name].make(windows, vocabulary, settings, rates)


def defined(settings: ObjectiveSettings) -> Objective[Any]:
    """What a model trained with these settings defines: an objective's abilities, less those they leave out."""
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

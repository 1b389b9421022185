"""Chooses how a model takes steps: with cached keys and values (Transformers), or with a carried state (LSTMs)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from unicloze.decoding.branches import Branches
from unicloze.decoding.carried import CarriedStates
from unicloze.decoding.model_format import GenerationFormat
from unicloze.decoding.search import Stepper
from unicloze.model.inference_model import IncrementalModel
from unicloze.model.model import UnifiedModel
from unicloze.model.readers import check_steps, takes_steps
from unicloze.model.recurrent.model import RecurrentModel
from unicloze.model.recurrent.steps import RecurrentSteps, StepModel, TranslationSteps
from unicloze.model.recurrent.translation_model import TranslationModel
from unicloze.settings import ModelSettings

Prepared: TypeAlias = IncrementalModel | StepModel
"""A model prepared for generation."""

UNLIMITED = 2**31
"""Positions of a model without any, which reads texts of any length."""


def generates(settings: ModelSettings) -> bool:
    """Whether a model of this shape can generate token by token."""
    return settings.kind == "recurrent" or takes_steps(settings)


def check_generates(settings: ModelSettings) -> None:
    """Reject a model that cannot generate token by token.

    Raises:
        UsageError: Its layers need more of earlier slots than is kept.
    """
    if not generates(settings):
        check_steps(settings)


def positions_of(model: UnifiedModel) -> int:
    """Positions that source and target may take; LSTMs read texts of any length."""
    return UNLIMITED if model.settings.kind == "recurrent" else model.max_positions


def prepared(model: UnifiedModel, dtype: torch.dtype) -> Prepared:
    """The model prepared for generation.

    Args:
        model: A model that predicts tokens.
        dtype: Data type of its matrix products.

    Raises:
        UsageError: It does not predict tokens, or cannot generate token by token.
    """
    if isinstance(model, RecurrentModel):
        return RecurrentSteps(model, dtype)
    return TranslationSteps(model, dtype) if isinstance(model, TranslationModel) else IncrementalModel(model, dtype)


def stepper(
    model: Prepared,
    layout: GenerationFormat,
    sources: Sequence[npt.NDArray[np.integer]],
    *,
    count: int,
    max_length: int,
) -> Stepper:
    """The hypotheses of a batch of sources; arguments as of `unicloze.decoding.branches.Branches`.

    Raises:
        UsageError: A source is too long for the model.
    """
    if isinstance(model, IncrementalModel):
        return Branches(model, layout, sources, count=count, max_length=max_length)
    return CarriedStates(model, layout, sources, count=count)

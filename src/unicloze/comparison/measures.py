"""Scores of a trained model on held-out text, the same for every objective that defines them.

All models see the same windows and the same masked positions, drawn by Algorithm 1: `ae` predicts them all at once from
the rest, `par` predicts them block by block, `causal` predicts every token from those to its left. A score that an
objective does not define is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from unicloze.decoding.abilities import Ability, objective_of, part_with
from unicloze.objectives import defined
from unicloze.objectives.unilmv2 import UniLMv2Settings, draw_steps
from unicloze.text.tokenizers import Vocabulary
from unicloze.text.windows import Windows
from unicloze.training.loading import LoadedModel
from unicloze.training.loop import Compute, evaluate

MEASURES: Mapping[str, Ability] = {"ae": "cloze", "par": "stepwise", "causal": "causal"}
"""The ability of an objective that each measure needs."""


def masked_steps(windows: Windows, vocabulary: Vocabulary) -> npt.NDArray[np.int32]:
    """Step of each masked position of held-out windows, -1 elsewhere. *Shape:* (rows, window)"""
    plain = UniLMv2Settings()
    return draw_steps(windows, plain, np.full(len(windows), plain.mask_rate), vocabulary)


def held_out(loaded: LoadedModel, windows: Windows, compute: Compute, rows: int) -> dict[str, float | None]:
    """Mean nats per prediction by measure; None if it is undefined or there are no predictions.

    Args:
        loaded: The model.
        windows: Held-out windows with one segment each.
        compute: Device and precision to compute with.
        rows: Rows per forward pass.
    """
    vocabulary = loaded.tokenizer.vocabulary
    steps = masked_steps(windows, vocabulary)
    result: dict[str, float | None] = {}
    for measure, ability in MEASURES.items():
        settings = part_with(objective_of(loaded.recipe), ability)
        lay_out = None if settings is None else getattr(defined(settings), ability)
        if lay_out is None:
            result[measure] = None
            continue
        asked = (windows,) if measure == "causal" else (windows, steps)
        examples = lay_out(*asked, vocabulary, settings)
        ((total, weight),) = evaluate(loaded.model, examples, compute, rows).values()
        result[measure] = total / weight if weight else None
    return result


def bits_per_byte(nats: float | None, tokens_per_byte: float | None) -> float | None:
    """Convert nats per token to bits per byte of text; None if either is unknown."""
    return None if nats is None or tokens_per_byte is None else nats / math.log(2) * tokens_per_byte

"""UniLMv2's objectives: autoencoding and (partially) autoregressive prediction in one row (paper Section 3).

A row is C, O, P: the context with masked positions corrupted, the original masked tokens by factorization step, and their
pseudo masks by step. O and P slots have the position and segment of their token. `ae` is predicted at the masked slots of C,
`par` at P; with steps of one token PAR is AR.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from unicloze import keyed, visibility
from unicloze.arrays import Int32s
from unicloze.errors import UsageError
from unicloze.example import Examples, Kind
from unicloze.objectives import masking
from unicloze.objectives.generation_format import GenerationFormat, layout
from unicloze.objectives.groups import Corruption, Masking, Pairs, PseudoToken
from unicloze.objectives.objective import Ability, Objective
from unicloze.objectives.row_builder import MaskedTokens, RowBuilder, in_turn, with_pair_target
from unicloze.rules import Problem
from unicloze.settings import Recipe
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows

ALL_MASKED = Corruption(mask_share=1.0, random_share=0.0)
"""Corruption that shows a mask at every masked position."""


@dataclass(frozen=True, kw_only=True)
class UniLMv2Settings(Masking, Corruption, PseudoToken, Pairs):
    """UniLMv2's settings.

    Args:
        masks_in_context: Keep a mask in the context at every masked position (Figure 3).
    """

    name: str = "unilmv2"
    masks_in_context: bool = True

    known_targets = "ae", "par", "nsp", "sop"

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Reject targets that need masks in the context."""
        yield from super().problems(recipe)
        if not self.masks_in_context and "ae" in self.targets:
            yield (
                "objective.masks_in_context",
                "the target 'ae' is predicted at the masks in the context; it must be true",
            )


def unilmv2(
    windows: Windows,
    vocabulary: Vocabulary,
    settings: UniLMv2Settings,
    rates: masking.Rates | None = None,
) -> Examples:
    """Mask a block of windows and lay out its rows; all draws are keyed by `windows.keys`.

    Args:
        windows: The text.
        vocabulary: Ids of the masks and candidates for random tokens.
        settings: What to mask, predict and show.
        rates: Mask rate of each row; default: `settings.mask_rate`. *Shape:* (rows,)
    """
    rates = masking.rates_of(windows, settings, rates)
    steps = draw_steps(windows, settings, rates, vocabulary)
    examples = lay_out(
        windows,
        steps,
        vocabulary,
        settings,
        predict=settings.targets,
        pseudo=pseudo_id(vocabulary, settings) if "par" in settings.targets else vocabulary.mask,
        whole=settings.masks_in_context,
        most=masking.most_masked_by(settings, windows.token_ids.shape[1], masking.highest_rate(settings, rates)),
    )
    return with_pair_target(examples, windows, settings)


def cloze(windows: Windows, steps: masking.Steps, vocabulary: Vocabulary, settings: UniLMv2Settings) -> Examples:
    """Rows that predict every masked token from the context alone, with a mask at each (equation 3)."""
    return lay_out(windows, steps, vocabulary, ALL_MASKED, predict=("ae",), pseudo=vocabulary.mask)


def stepwise(windows: Windows, steps: masking.Steps, vocabulary: Vocabulary, settings: UniLMv2Settings) -> Examples:
    """Rows that predict the masked tokens step by step, with a mask at each (equation 6)."""
    pseudo = pseudo_id(vocabulary, settings)
    whole = settings.masks_in_context
    return lay_out(windows, steps, vocabulary, ALL_MASKED, predict=("par",), pseudo=pseudo, whole=whole)


def causal(windows: Windows, vocabulary: Vocabulary, settings: UniLMv2Settings) -> Examples:
    """Rows that predict every text token from those left of it, with a mask at every text position of the context."""
    return stepwise(windows, in_turn(windows), vocabulary, settings)


def draw_steps(windows: Windows, settings: Masking, rates: masking.Rates, vocabulary: Vocabulary) -> masking.Steps:
    """The factorization step of each position of each window, -1 if it is not masked. *Shape:* (rows, window)"""
    units = masking.units_of(windows, vocabulary, settings)
    if settings.masking == "token":
        steps = masking.single_tokens(windows.maskable, windows.keys, rates=rates, units=units)
        if units is None:
            return steps
    else:
        steps = masking.spans(
            windows.maskable,
            windows.lengths,
            windows.keys,
            rates=rates,
            lengths_of=masking.span_lengths(settings),
            units=units,
        )
    return masking.shuffle_tokens(steps, windows.keys) if settings.factorization == "token" else steps


def lay_out(
    windows: Windows,
    steps: masking.Steps,
    vocabulary: Vocabulary,
    corruption: Corruption,
    *,
    predict: Collection[str],
    pseudo: int,
    whole: bool = True,
    most: int = 1,
) -> Examples:
    """The rows C, O, P for given factorization steps.

    Args:
        windows: The text.
        steps: Step of each position, -1 if it is not masked. *Shape:* (rows, window)
        vocabulary: Ids of the masks and candidates for random tokens.
        corruption: What masked positions show.
        predict: `ae`, `par` or both.
        pseudo: Id of the pseudo masks.
        whole: Whether the context includes the masked positions; required for `ae`.
        most: Minimum capacity of a row in masked tokens, so that all rows of a run have the same width.
    """
    window = windows.token_ids.shape[1]
    masked = MaskedTokens.of(steps)
    stepwise = "par" in predict
    most = max(most, int(masked.counts.max(initial=0)))
    capacity = window + 2 * most if stepwise else window

    row = masked.row
    original_ids = windows.token_ids[row, masked.position]
    context_ids, pseudo_ids = corrupt(windows, masked, original_ids, vocabulary, corruption, pseudo=pseudo)
    rows = RowBuilder(windows, masked, vocabulary, capacity)
    context = rows.put_windows(context_ids) if whole or not stepwise else rows.put_unmasked()

    targets = {}
    if "ae" in predict:
        targets["ae"] = masked.target(masked.position, original_ids, most)
    if stepwise:
        original = context[row] + masked.rank
        query = original + masked.counts[row]
        rows.put_masked(original, original_ids, Kind.ORIGINAL)
        rows.put_masked(query, pseudo_ids, Kind.PSEUDO)
        targets["par"] = masked.target(query, original_ids, most)
        starts, ends = masked.step_bounds()
        intervals = visibility.pseudo_masked_rows(context, row, starts, ends, capacity=capacity)
    else:
        intervals = visibility.bidirectional_rows(context, capacity=capacity)
    return rows.examples(intervals, lengths=context + 2 * masked.counts * stepwise, mutual=context, targets=targets)


def corrupt(
    windows: Windows,
    masked: MaskedTokens,
    original: Int32s,
    vocabulary: Vocabulary,
    corruption: Corruption,
    *,
    pseudo: int,
) -> tuple[Int32s, Int32s]:
    """Ids shown at the masked slots of C and of P. Both use one draw, so that C reveals nothing to P that P does not show.

    If whole spans are corrupted, the draw is keyed by step; random tokens still differ within a span.
    """
    keys = windows.keys[masked.row]
    named = masked.step if corruption.corruption_unit == "span" else masked.position
    draw = keyed.uniform(keyed.bits(keys, keyed.Stream.CORRUPTION, named))
    which = keyed.below(keyed.bits(keys, keyed.Stream.RANDOM_TOKEN, masked.position), len(vocabulary.ordinary))
    random = vocabulary.ordinary[which]
    shown = np.where(draw < corruption.mask_share + corruption.random_share, random, original)
    as_mask = draw < corruption.mask_share
    return np.where(as_mask, vocabulary.mask, shown), np.where(as_mask, pseudo, shown)


def pseudo_id(vocabulary: Vocabulary, settings: PseudoToken) -> int:
    """Token id of [P]."""
    if settings.pseudo_token == "mask":
        return vocabulary.mask
    if vocabulary.pseudo is None:
        raise UsageError(
            "objective.pseudo_token is own, but the tokenizer has neither a [PSEUDO] nor an unused token: "
            "set --objective.pseudo_token mask."
        )
    return vocabulary.pseudo


def _defines(settings: UniLMv2Settings) -> set[Ability]:
    found: set[Ability] = {"cloze"} if "ae" in settings.targets else set()
    return found | ({"stepwise", "causal"} if "par" in settings.targets else set())


def _generates(settings: UniLMv2Settings, vocabulary: Vocabulary) -> GenerationFormat | None:
    if "par" not in settings.targets:
        return None
    own = settings.pseudo_token == "own" and vocabulary.pseudo is not None
    return layout(settings, vocabulary, predicts="pseudo", pseudo=vocabulary.pseudo if own else vocabulary.mask)


OBJECTIVES: Mapping[str, Objective[Any]] = {
    "unilmv2": Objective(
        settings=UniLMv2Settings,
        make=unilmv2,
        cloze=cloze,
        stepwise=stepwise,
        causal=causal,
        defines=_defines,
        causal_masks=True,
        generates=_generates,
    )
}

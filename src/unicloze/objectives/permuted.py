"""Permuted language models: XLNet, and MPNet, which shows a mask for every token not predicted yet.

Both predict the last tokens of a random factorization order step by step (`par`). The slots that predict must not see their
answers, so they are separate from the slots that others see. Tokens that are not predicted are the context of all steps.

`permuted` (Yang et al. 2019, Sections 2.2 and 2.3): a row is C, O, P. C holds the tokens that are not predicted, O the
predicted tokens by step: together they are the content stream. P is the query stream, which no other slot sees. Partial
prediction of one token in K is `mask_rate` 1/K. A P slot shows no token: its id is that of the pseudo mask, whose embedding
is the paper's learned vector w.

`compensated` (Song et al. 2020, Sections 2.2 and 2.3): a row is C, O, M, Q. M holds masks at the predicted positions, so
that a query sees every position of the text once, as a token or as a mask. A mask and its query show the same id, drawn
once: a mask, a random token or the token itself (80/10/10 as in BERT).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from unicloze import visibility
from unicloze.errors import UsageError
from unicloze.example import Examples, Kind
from unicloze.objectives import masking
from unicloze.objectives.groups import Corruption, Masking, Pairs, PseudoToken
from unicloze.objectives.objective import Objective
from unicloze.objectives.row_builder import MaskedTokens, RowBuilder, in_turn, with_pair_target
from unicloze.objectives.unilmv2 import ALL_MASKED, corrupt, draw_steps, pseudo_id
from unicloze.rules import Problem
from unicloze.settings import Recipe
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows


@dataclass(frozen=True, kw_only=True)
class PermutedSettings(Masking, PseudoToken, Pairs):
    """Settings of XLNet's objective."""

    name: str = "permuted"

    known_targets: ClassVar = ("par", "nsp", "sop")

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Reject targets without `par`, which the rows always predict."""
        if "par" not in self.targets:
            yield "objective.targets", f"objective {self.name} always predicts 'par'; include it"
        yield from super().problems(recipe)


@dataclass(frozen=True, kw_only=True)
class CompensatedSettings(PermutedSettings, Corruption):
    """Settings of MPNet's objective."""

    name: str = "compensated"


def permuted(
    windows: Windows, vocabulary: Vocabulary, settings: PermutedSettings, rates: masking.Rates | None = None
) -> Examples:
    """XLNet's rows; all draws are keyed by `windows.keys`.

    Args:
        windows: The text.
        vocabulary: Ids of the special tokens.
        settings: What to predict, and in which order.
        rates: Share of the text tokens to predict in each row; default: `settings.mask_rate`. *Shape:* (rows,)
    """
    steps, most = _draw(windows, vocabulary, settings, rates)
    examples = lay_out_permuted(windows, steps, vocabulary, pseudo=pseudo_id(vocabulary, settings), most=most)
    return with_pair_target(examples, windows, settings)


def permuted_stepwise(
    windows: Windows, steps: masking.Steps, vocabulary: Vocabulary, settings: PermutedSettings
) -> Examples:
    """XLNet's rows for given factorization steps."""
    return lay_out_permuted(windows, steps, vocabulary, pseudo=pseudo_id(vocabulary, settings))


def permuted_causal(windows: Windows, vocabulary: Vocabulary, settings: PermutedSettings) -> Examples:
    """XLNet's rows that predict every text token from those left of it; the context has only the special tokens."""
    return permuted_stepwise(windows, in_turn(windows), vocabulary, settings)


def compensated(
    windows: Windows, vocabulary: Vocabulary, settings: CompensatedSettings, rates: masking.Rates | None = None
) -> Examples:
    """MPNet's rows; all draws are keyed by `windows.keys`.

    Args:
        windows: The text.
        vocabulary: Ids of the masks and candidates for random tokens.
        settings: What to predict, in which order, and what to show in its place.
        rates: Share of the text tokens to predict in each row; default: `settings.mask_rate`. *Shape:* (rows,)
    """
    steps, most = _draw(windows, vocabulary, settings, rates)
    pseudo = pseudo_id(vocabulary, settings)
    examples = lay_out_compensated(windows, steps, vocabulary, settings, pseudo=pseudo, most=most)
    return with_pair_target(examples, windows, settings)


def compensated_stepwise(
    windows: Windows, steps: masking.Steps, vocabulary: Vocabulary, settings: CompensatedSettings
) -> Examples:
    """MPNet's rows for given factorization steps, with a mask at each predicted position."""
    return lay_out_compensated(windows, steps, vocabulary, ALL_MASKED, pseudo=pseudo_id(vocabulary, settings))


def compensated_causal(windows: Windows, vocabulary: Vocabulary, settings: CompensatedSettings) -> Examples:
    """MPNet's rows that predict every text token from those left of it, with masks at all other positions."""
    return compensated_stepwise(windows, in_turn(windows), vocabulary, settings)


def _draw(
    windows: Windows, vocabulary: Vocabulary, settings: Masking, rates: masking.Rates | None
) -> tuple[masking.Steps, int]:
    """The factorization steps, and the maximum number of predicted tokens in any row of the run."""
    rates = masking.rates_of(windows, settings, rates)
    highest = masking.highest_rate(settings, rates)
    most = masking.most_masked_by(settings, windows.token_ids.shape[1], highest)
    return draw_steps(windows, settings, rates, vocabulary), most


def lay_out_permuted(
    windows: Windows, steps: masking.Steps, vocabulary: Vocabulary, *, pseudo: int, most: int = 1
) -> Examples:
    """The rows C, O, P for given factorization steps.

    Args:
        windows: The text.
        steps: Step of each position, -1 if it is not predicted. *Shape:* (rows, window)
        vocabulary: Ids of the special tokens.
        pseudo: Token id of the P slots.
        most: Minimum capacity of a row in predicted tokens.
    """
    masked, most = _masked(windows, steps, most)
    capacity = windows.token_ids.shape[1] + most
    rows = RowBuilder(windows, masked, vocabulary, capacity)
    context = rows.put_unmasked()
    original = context[masked.row] + masked.rank
    query = original + masked.counts[masked.row]
    answers = windows.token_ids[masked.row, masked.position]
    rows.put_masked(original, answers, Kind.ORIGINAL)
    rows.put_masked(query, np.full_like(answers, pseudo), Kind.PSEUDO)
    return rows.examples(
        visibility.permuted_rows(context, masked.row, *masked.step_bounds(), capacity=capacity),
        lengths=context + 2 * masked.counts,
        mutual=context,
        targets={"par": masked.target(query, answers, most)},
    )


def lay_out_compensated(
    windows: Windows,
    steps: masking.Steps,
    vocabulary: Vocabulary,
    corruption: Corruption,
    *,
    pseudo: int,
    most: int = 1,
) -> Examples:
    """The rows C, O, M, Q for given factorization steps.

    Args:
        windows: The text.
        steps: Step of each position, -1 if it is not predicted. *Shape:* (rows, window)
        vocabulary: Ids of the masks and candidates for random tokens.
        corruption: What M and Q show.
        pseudo: Id of the masks in Q.
        most: Minimum capacity of a row in predicted tokens.
    """
    masked, most = _masked(windows, steps, most)
    capacity = windows.token_ids.shape[1] + 2 * most
    rows = RowBuilder(windows, masked, vocabulary, capacity)
    context = rows.put_unmasked()
    counts = masked.counts[masked.row]
    original = context[masked.row] + masked.rank
    mask, query = original + counts, original + 2 * counts
    answers = windows.token_ids[masked.row, masked.position]
    mask_ids, query_ids = corrupt(windows, masked, answers, vocabulary, corruption, pseudo=pseudo)
    rows.put_masked(original, answers, Kind.ORIGINAL)
    rows.put_masked(mask, mask_ids, Kind.MASK)
    rows.put_masked(query, query_ids, Kind.PSEUDO)
    return rows.examples(
        visibility.compensated_rows(context, masked.row, *masked.step_bounds(), capacity=capacity),
        lengths=context + 3 * masked.counts,
        mutual=np.zeros_like(context),
        targets={"par": masked.target(query, answers, most)},
    )


def _masked(windows: Windows, steps: masking.Steps, most: int) -> tuple[MaskedTokens, int]:
    """The predicted tokens, and the maximum per row."""
    masked = MaskedTokens.of(steps)
    if (masked.counts >= windows.lengths).any():
        raise UsageError("every token of a window is to be predicted: leave at least [SOS] as context")
    return masked, max(most, int(masked.counts.max(initial=0)))


OBJECTIVES: Mapping[str, Objective[Any]] = {
    "permuted": Objective(
        settings=PermutedSettings,
        make=permuted,
        stepwise=permuted_stepwise,
        causal=permuted_causal,
        causal_masks=True,
        not_done="XLNet's generation, token by token from its query stream and memory",
    ),
    "compensated": Objective(
        settings=CompensatedSettings,
        make=compensated,
        stepwise=compensated_stepwise,
        causal=compensated_causal,
        causal_masks=True,
    ),
}

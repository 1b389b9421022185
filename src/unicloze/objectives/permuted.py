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
from unicloze.arrays import Flags
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
    """XLNet's rows, or MPNet's by their settings; all draws are keyed by `windows.keys`.

    Args:
        windows: The text.
        vocabulary: Ids of the special tokens and candidates for random tokens.
        settings: What to predict, in which order, and what MPNet shows in its place.
        rates: Share of the text tokens to predict in each row; default: `settings.mask_rate`. *Shape:* (rows,)
    """
    rates = masking.rates_of(windows, settings, rates)
    most = masking.most_masked_by(settings, windows.token_ids.shape[1], masking.highest_rate(settings, rates))
    steps, pseudo = draw_steps(windows, settings, rates, vocabulary), pseudo_id(vocabulary, settings)
    if isinstance(settings, Corruption):
        examples = lay_out_permuted(windows, steps, vocabulary, settings, pseudo=pseudo, most=most)
    else:
        steps, apart = remembered_first(steps, windows)
        examples = lay_out_permuted(windows, steps, vocabulary, pseudo=pseudo, most=most, apart=apart)
    return with_pair_target(examples, windows, settings)


def remembered_first(steps: masking.Steps, windows: Windows) -> tuple[masking.Steps, Flags | None]:
    """The steps with those of the tokens to remember before all others, and which these tokens are.

    They must read nothing but each other and the memory, since the window that continues from them predicts the others. A
    row without an unmasked one has none. The second is None unless windows overlap. *Shape:* (rows, window) each
    """
    if windows.new is None:
        return steps, None
    masked, most = steps >= 0, int(steps.max(initial=0)) + 1
    apart = windows.new & np.any(windows.new & ~masked, axis=1)[:, None]
    first = 2 * most * np.arange(len(steps))[:, None]
    each, number = np.unique((first + steps + most * ~apart)[masked], return_inverse=True)
    result = np.full_like(steps, -1)
    result[masked] = number - np.searchsorted(each, np.broadcast_to(first, steps.shape)[masked])
    return result, apart


def stepwise(windows: Windows, steps: masking.Steps, vocabulary: Vocabulary, settings: PermutedSettings) -> Examples:
    """The rows for given factorization steps; MPNet's have a mask at each predicted position."""
    shown = ALL_MASKED if isinstance(settings, Corruption) else None
    return lay_out_permuted(windows, steps, vocabulary, shown, pseudo=pseudo_id(vocabulary, settings))


def causal(windows: Windows, vocabulary: Vocabulary, settings: PermutedSettings) -> Examples:
    """The rows that predict every text token from those left of it; the context has only the special tokens."""
    return stepwise(windows, in_turn(windows), vocabulary, settings)


def lay_out_permuted(
    windows: Windows,
    steps: masking.Steps,
    vocabulary: Vocabulary,
    shown: Corruption | None = None,
    *,
    pseudo: int,
    most: int = 1,
    apart: Flags | None = None,
) -> Examples:
    """The rows C, O, P (XLNet) or C, O, M, Q (MPNet) for given factorization steps.

    Args:
        windows: The text.
        steps: Step of each position, -1 if it is not predicted. *Shape:* (rows, window)
        vocabulary: Ids of the special tokens and candidates for random tokens.
        shown: What MPNet's M and Q show; None for XLNet's rows.
        pseudo: Token id of the P slots, or of the masks in Q.
        most: Minimum capacity of a row in predicted tokens.
        apart: Which tokens read only each other in XLNet's rows; their steps are the first. *Shape:* (rows, window)
    """
    masked, compensates = MaskedTokens.of(steps), shown is not None
    if (masked.counts >= windows.lengths).any():
        raise UsageError("every token of a window is to be predicted: leave at least [SOS] as context")
    most = max(most, int(masked.counts.max(initial=0)))
    capacity = windows.token_ids.shape[1] + (1 + compensates) * most
    rows = RowBuilder(windows, masked, vocabulary, capacity)
    context, counts = rows.put_unmasked(apart), masked.counts[masked.row]
    original = context[masked.row] + masked.rank
    query = original + (1 + compensates) * counts
    answers = windows.token_ids[masked.row, masked.position]
    rows.put_masked(original, answers, Kind.ORIGINAL)
    query_ids = np.full_like(answers, pseudo)
    if shown is not None:
        mask_ids, query_ids = corrupt(windows, masked, answers, vocabulary, shown, pseudo=pseudo)
        rows.put_masked(original + counts, mask_ids, Kind.MASK)
    rows.put_masked(query, query_ids, Kind.PSEUDO)
    mutual, bounds = np.zeros_like(context), masked.step_bounds()
    if compensates:
        intervals = visibility.compensated_rows(context, masked.row, *bounds, capacity=capacity)
    elif apart is None:
        intervals, mutual = visibility.permuted_rows(context, masked.row, *bounds, capacity=capacity), context
    else:
        of_apart = apart[masked.row, masked.position]
        count = apart.sum(axis=1) - np.bincount(masked.row[of_apart], minlength=len(context))
        mutual = np.where(count > 0, count, context)
        intervals = visibility.permuted_rows(
            context, masked.row, *bounds, capacity=capacity, apart=count, of_apart=of_apart
        )
    return rows.examples(
        intervals,
        lengths=context + (2 + compensates) * masked.counts,
        mutual=mutual,
        targets={"par": masked.target(query, answers, most)},
    )


OBJECTIVES: Mapping[str, Objective[Any]] = {
    "permuted": Objective(
        settings=PermutedSettings,
        make=permuted,
        stepwise=stepwise,
        causal=causal,
        causal_masks=True,
        not_done="XLNet's generation, token by token from its query stream and memory",
    ),
    "compensated": Objective(
        settings=CompensatedSettings,
        make=permuted,
        stepwise=stepwise,
        causal=causal,
        at_masks=True,
        causal_masks=True,
    ),
}

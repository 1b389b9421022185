"""UniLMv2's objectives: autoencoding and (partially) autoregressive prediction in one row (paper Section 3).

A row is C, O, P: the context with each masked position corrupted, the original masked tokens by factorization step, and
their pseudo masks by step. O and P carry the position and segment of the token they stand for. `ae` is predicted at the
masked slots of C, `par` at P; with steps of one token PAR is AR.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from unicloze import keyed, visibility
from unicloze.errors import UsageError
from unicloze.example import Examples, Kind
from unicloze.objectives import masking
from unicloze.objectives.layout import MaskedTokens, Rows, in_turn
from unicloze.settings import ObjectiveSettings
from unicloze.text.tokenizers import Vocabulary
from unicloze.text.windows import Windows


def unilmv2(
    windows: Windows,
    vocabulary: Vocabulary,
    settings: ObjectiveSettings,
    rates: npt.NDArray[np.float64] | None = None,
) -> Examples:
    """Mask a block of windows and lay out its rows; all draws are keyed by `windows.keys`.

    Args:
        windows: The text.
        vocabulary: Ids of the masks and of the tokens a random one is drawn from.
        settings: What to mask, predict and show.
        rates: Mask rate of each row; `settings.mask_rate` if not given. *Shape:* (rows,)
    """
    rates = masking.rates_of(windows, settings, rates)
    steps = draw_steps(windows, settings, rates, vocabulary)
    return lay_out(windows, steps, vocabulary, settings, rate=masking.highest_rate(settings, rates))


def cloze(windows: Windows, steps: masking.Steps, vocabulary: Vocabulary, settings: ObjectiveSettings) -> Examples:
    """Rows that predict every masked token from the context alone, a mask at each of them (equation 3)."""
    return lay_out(windows, steps, vocabulary, _plain(settings, "ae"), rate=0.0)


def stepwise(windows: Windows, steps: masking.Steps, vocabulary: Vocabulary, settings: ObjectiveSettings) -> Examples:
    """Rows that predict the masked tokens step by step, a mask at each of them (equation 6)."""
    return lay_out(windows, steps, vocabulary, _plain(settings, "par"), rate=0.0)


def causal(windows: Windows, vocabulary: Vocabulary, settings: ObjectiveSettings) -> Examples:
    """Rows that predict every text token from those left of it, a mask at every position of the context."""
    return stepwise(windows, in_turn(windows), vocabulary, settings)


def _plain(settings: ObjectiveSettings, target: str) -> ObjectiveSettings:
    return dataclasses.replace(settings, targets=[target], mask_share=1.0, random_share=0.0)


def draw_steps(
    windows: Windows, settings: ObjectiveSettings, rates: npt.NDArray[np.float64], vocabulary: Vocabulary
) -> masking.Steps:
    """The factorization step of each position of each window, -1 where it is not masked. *Shape:* (rows, window)"""
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
            max_span=settings.max_span,
            units=units,
        )
    return masking.shuffle_tokens(steps, windows.keys) if settings.factorization == "token" else steps


def lay_out(
    windows: Windows, steps: masking.Steps, vocabulary: Vocabulary, settings: ObjectiveSettings, *, rate: float
) -> Examples:
    """The rows C, O, P for given factorization steps.

    Args:
        windows: The text.
        steps: Step of each position, -1 where it is not masked. *Shape:* (rows, window)
        vocabulary: Ids of the masks and of the tokens a random one is drawn from.
        settings: What to predict and show.
        rate: The highest mask rate of these rows, from which the width of a row follows.
    """
    window = windows.token_ids.shape[1]
    masked = MaskedTokens.of(steps)
    stepwise = "par" in settings.targets
    most = masking.most_masked(window - 1, rate, settings.max_span, masking.longest_unit(settings))
    most = max(most, int(masked.counts.max(initial=0)))
    capacity = window + 2 * most if stepwise else window

    row = masked.row
    original_ids = windows.token_ids[row, masked.position]
    context_ids, pseudo_ids = corrupt(windows, masked, original_ids, vocabulary, settings)
    rows = Rows(windows, masked, vocabulary, capacity)
    whole = settings.masks_in_context or not stepwise
    context = rows.put_windows(context_ids) if whole else rows.put_unmasked()

    targets = {}
    if "ae" in settings.targets:
        targets["ae"] = masked.target(masked.position, original_ids, most)
    if stepwise:
        original = context[row] + masked.rank
        pseudo = original + masked.counts[row]
        rows.put_masked(original, original_ids, Kind.ORIGINAL)
        rows.put_masked(pseudo, pseudo_ids, Kind.PSEUDO)
        targets["par"] = masked.target(pseudo, original_ids, most)
        starts, ends = masked.step_bounds()
        intervals = visibility.pseudo_masked_rows(context, row, starts, ends, capacity=capacity)
    else:
        nothing = np.zeros(0, dtype=np.int64)
        intervals = visibility.pseudo_masked_rows(context, nothing, nothing, nothing, capacity=capacity)
    return rows.examples(intervals, lengths=context + 2 * masked.counts * stepwise, mutual=context, targets=targets)


def corrupt(
    windows: Windows,
    masked: MaskedTokens,
    original: npt.NDArray[np.int32],
    vocabulary: Vocabulary,
    settings: ObjectiveSettings,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """What the masked slots of C and of P show. One draw for both, so that C tells P nothing that P does not show.

    Where a span is corrupted as a whole its step names the draw; random tokens differ within it all the same.
    """
    keys = windows.keys[masked.row]
    named = masked.step if settings.corruption_unit == "span" else masked.position
    draw = keyed.uniform(keyed.bits(keys, keyed.Stream.CORRUPTION, named))
    which = keyed.below(keyed.bits(keys, keyed.Stream.RANDOM_TOKEN, masked.position), len(vocabulary.ordinary))
    random = vocabulary.ordinary[which]
    shown = np.where(draw < settings.mask_share + settings.random_share, random, original)
    as_mask = draw < settings.mask_share
    pseudo = pseudo_id(vocabulary, settings) if "par" in settings.targets else vocabulary.mask
    return np.where(as_mask, vocabulary.mask, shown), np.where(as_mask, pseudo, shown)


def pseudo_id(vocabulary: Vocabulary, settings: ObjectiveSettings) -> int:
    """The id [P] has.

    Raises:
        UsageError: It should have its own and the vocabulary has none to give.
    """
    if settings.pseudo_token == "mask":
        return vocabulary.mask
    if vocabulary.pseudo is None:
        raise UsageError(
            "objective.pseudo_token is own, but the tokenizer has neither a [PSEUDO] nor an unused token: "
            "set --objective.pseudo_token mask"
        )
    return vocabulary.pseudo

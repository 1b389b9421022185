"""How much the sequence-to-sequence objectives take out of a text, and how long their rows get: plain arithmetic.

Recipes are checked by it before anything is read, the objectives draw by it, and the position table is sized by it. So it
needs neither torch nor numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from unicloze.mixtures import parts, phases
from unicloze.settings import ObjectiveSettings, Recipe

_POISSON_TAIL = 6, 18
"""Spans are drawn until their mean total exceeds what is wanted by 6 of its square roots and 18: that falls short of it
less than once in 10^7 rows."""


class Bounds(NamedTuple):
    """The most that a row of an objective can take up.

    Args:
        slots: Slots of the row.
        predictions: Tokens it predicts.
        positions: Positions its slots stand for.
        sentinels: Different sentinels it shows.
    """

    slots: int
    predictions: int
    positions: int
    sentinels: int = 0


def corrupted_spans(tokens: int, rate: float, mean_span: float) -> tuple[int, int]:
    """Noise tokens and spans of T5's span corruption: both rounded, at least one, and never the whole text.

    A text of fewer than two tokens is left alone.
    """
    if tokens < 2:
        return 0, 0
    noise = min(max(round(tokens * rate), 1), tokens - 1)
    return noise, min(max(round(noise / mean_span), 1), tokens - noise)


def predicted_suffix(tokens: int, rate: float) -> tuple[int, int]:
    """Shortest and longest target of a prefix language model whose targets are on average the share `rate` of a text."""
    shortest = min(tokens, max(1, round((2 * rate - 1) * tokens)))
    return shortest, max(shortest, min(tokens, round(2 * rate * tokens)))


def noised_tokens(tokens: int, rate: float) -> int:
    """Tokens that one kind of BART's noise takes away or masks: the share, rounded up."""
    return min(tokens, math.ceil(rate * tokens - 1e-9))


def infilled_spans(noised: int, mean_span: float) -> int:
    """The most spans, empty ones included, that `noised` tokens are drawn in."""
    factor, more = _POISSON_TAIL
    return math.ceil((noised + factor * math.sqrt(noised) + more) / mean_span) if noised else 0


def masked_fragment(tokens: int, rate: float) -> int:
    """Tokens of MASS's one masked span: the share, rounded, at least one."""
    return min(tokens, max(1, round(tokens * rate)))


def _span_corruption(settings: ObjectiveSettings, text: int, rate: float) -> Bounds:
    noise, spans = corrupted_spans(text, rate, settings.mean_span)
    return _counted_on(settings, text - noise + spans, noise + spans + 2)._replace(sentinels=spans + 1)


def _prefix(settings: ObjectiveSettings, text: int, rate: float) -> Bounds:
    longest = predicted_suffix(text, rate)[1]
    return _counted_on(settings, 0, text + 1)._replace(predictions=longest + 1)


def _denoising(settings: ObjectiveSettings, text: int, rate: float) -> Bounds:
    source = text
    if "delete" in settings.noise:
        source -= noised_tokens(source, rate)
    if "infill" in settings.noise:
        noised = noised_tokens(source, rate)
        source += infilled_spans(noised, settings.mean_span) - noised
    return _counted_on(settings, source, text + 1)


def _masked_span(settings: ObjectiveSettings, text: int, rate: float) -> Bounds:
    fragment = masked_fragment(text, rate)
    source = _source_slots(settings, text)
    return Bounds(slots=source + 1 + fragment, predictions=fragment, positions=source)


def _source_slots(settings: ObjectiveSettings, source: int) -> int:
    return 1 + (settings.mode_token is not None) + source + 1


def _counted_on(settings: ObjectiveSettings, source: int, target: int) -> Bounds:
    slots = _source_slots(settings, source) + target
    return Bounds(slots=slots, predictions=target, positions=slots)


SEQUENCE_TO_SEQUENCE: Mapping[str, Callable[[ObjectiveSettings, int, float], Bounds]] = {
    "span_corruption": _span_corruption,
    "prefix": _prefix,
    "denoising": _denoising,
    "masked_span": _masked_span,
}
"""The sequence-to-sequence objectives, and the bounds of a row of so many text tokens at a mask rate."""


def row_bounds(settings: ObjectiveSettings, window: int, rates: Collection[float] = ()) -> Bounds:
    """The most that any row of a sequence-to-sequence objective takes up.

    Args:
        settings: The objective.
        window: Length of its windows in tokens, special tokens included.
        rates: Mask rates of rows, beside every rate the settings lead to: all rows of a run are as wide.
    """
    text = max(0, window - 2)
    of_row = SEQUENCE_TO_SEQUENCE[settings.name]
    bounds = [of_row(settings, text, rate) for rate in {*rates, *_rates(settings, text)}]
    return Bounds(*map(max, zip(*bounds, strict=True)))


def positions(settings: ObjectiveSettings, window: int) -> int:
    """Rows of the position table an objective needs."""
    return max(window, row_bounds(settings, window).positions) if settings.name in SEQUENCE_TO_SEQUENCE else window


def longest_row(recipe: Recipe) -> int:
    """Rows of the position table that all parts of all phases of a recipe need."""
    return max(
        positions(part.settings, phase.recipe.data.window)
        for phase in phases(recipe)
        for part in parts(phase.recipe.objective)
    )


def _rates(settings: ObjectiveSettings, text: int) -> set[float]:
    """Every mask rate that matters: on the way to a final one, all that differ by a token."""
    rates = {settings.mask_rate}
    if settings.final_mask_rate is not None:
        low, high = sorted((settings.mask_rate, settings.final_mask_rate))
        rates |= {high} | {i / text for i in range(text + 1) if low < i / text < high}
    return rates

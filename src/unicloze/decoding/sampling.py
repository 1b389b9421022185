"""Restricts the next token: excluded tokens, and sampling from the likely ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unicloze.decoding.model_format import GenerationFormat
from unicloze.devices import widest_float
from unicloze.settings import DecodingSettings

NEVER = -torch.inf


@dataclass(frozen=True)
class TokenConstraints:
    """Excludes tokens by setting their log-probability to -inf; the rest is not renormalised.

    Args:
        settings: Settings of minimum length and repetition.
        layout: Names the tokens that end a text, never occur, or may repeat.
    """

    settings: DecodingSettings
    layout: GenerationFormat

    def apply(self, logs: Tensor, tokens: Tensor) -> Tensor:
        """Exclude, in place, the tokens that may not follow each text. If that leaves none, the text may end.

        Args:
            logs: Log-probabilities of the next token. *Shape:* (rows, texts, vocabulary)
            tokens: The texts so far. *Shape:* (rows, texts, tokens)
        """
        stop, size = self.layout.stop, self.settings.no_repeat_ngram
        end = logs[:, :, stop].clone()
        if self.layout.never:
            logs.index_fill_(2, torch.tensor(self.layout.never, device=logs.device), NEVER)
        if tokens.shape[2] < self.settings.min_length:
            logs[:, :, stop] = NEVER
        if 0 < size <= tokens.shape[2]:
            flat = logs.view(-1, logs.shape[2])
            flat[repeats(tokens.flatten(0, 1), size, self.layout.may_repeat)] = NEVER
            stuck = logs.amax(dim=2) == NEVER
            logs[:, :, stop] = torch.where(stuck, end, logs[:, :, stop])
        return logs


def repeats(tokens: Tensor, size: int, may_repeat: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Tokens that would repeat an n-gram that already occurs in a text.

    Args:
        tokens: Texts. *Shape:* (texts, tokens)
        size: Length of the n-grams in tokens.
        may_repeat: N-grams that contain one of these tokens may repeat.

    Returns:
        Row number and token of each repetition.
    """
    length = tokens.shape[1]
    grams = tokens.unfold(1, size, 1)
    tail = tokens[:, length - size + 1 :]
    same = (grams[:, :, :-1] == tail[:, None, :]).all(dim=2)
    if may_repeat:
        free = torch.isin(grams, torch.tensor(may_repeat, device=tokens.device))
        same &= ~free.any(dim=2)
    text, place = same.nonzero(as_tuple=True)
    return text, grams[text, place, -1]


def draw(logs: Tensor, settings: DecodingSettings, uniform: Tensor) -> Tensor:
    """Sample one token for each text.

    The temperature is applied first, then `top_k`, then `top_p` to the remaining tokens.

    Args:
        logs: Log-probabilities. *Shape:* (texts, vocabulary)
        settings: Temperature, `top_k` and `top_p`.
        uniform: A number in [0, 1) for each text, in double precision. *Shape:* (texts,)

    Returns:
        *Shape:* (texts,)
    """
    logs = logs.to(widest_float(logs.device))
    logs = (
        logs - logs.amax(dim=1, keepdim=True)
    ) / settings.temperature  # the maximum is 0, which stays finite at any temperature
    order = None
    if settings.top_k is not None:
        logs, order = logs.topk(min(settings.top_k, logs.shape[1]), dim=1)
    elif settings.top_p is not None:
        logs, order = logs.sort(dim=1, descending=True, stable=True)
    shares = torch.softmax(logs, dim=1)
    if settings.top_p is not None:
        before = shares.cumsum(dim=1) - shares
        shares = torch.where(before < settings.top_p, shares, 0.0)
    heights = shares.cumsum(dim=1)
    chosen = torch.searchsorted(heights, uniform[:, None] * heights[:, -1:], right=True).clamp(max=logs.shape[1] - 1)
    return (chosen if order is None else order.gather(1, chosen)).squeeze(1)

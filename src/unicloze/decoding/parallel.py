"""Any-order generation: each step fills several positions of a target, the most certain first.

A model trained with partially autoregressive steps predicts a position from the source and any set of known positions
(UniLMv2, equation 6). So every step puts a pseudo mask at each open position, which reads the source, the known tokens and
itself, and keeps the tokens the model is most certain of. The slots of these tokens read the source, the known tokens and
each other, like the tokens of one factorization step, and join the cache.

The target has `max_length` positions. Once an [EOS] is known, no position after it is filled any more, and tokens already
filled there are dropped at the end; so the model determines the length of the text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unicloze.decoding.search import NEVER, Hypothesis, Search, TokenConstraints, length_penalty
from unicloze.decoding.steppers import Sources
from unicloze.devices import widest_float
from unicloze.model.inference_model import IncrementalModel
from unicloze.visibility_masks import filling_mask


def surest(logs: Tensor, open_positions: Tensor, count: int) -> Tensor:
    """The open positions whose likeliest token is most certain, best first in each row.

    Args:
        logs: log p of the likeliest token of each position. *Shape:* (rows, positions)
        open_positions: *Shape:* (rows, positions)
        count: Number of positions to choose per row.

    Returns:
        *Shape:* (rows, count)
    """
    return torch.where(open_positions, logs, NEVER).sort(dim=1, descending=True, stable=True).indices[:, :count]


@torch.inference_mode()
def fill_in_parallel(
    model: IncrementalModel, sources: Sequence[npt.NDArray[np.integer]], rules: TokenConstraints
) -> Search:
    """Generate a target for each source, filling `parallel` positions per step."""
    settings, layout = rules.settings, rules.layout
    longest, at_once = settings.max_length, min(settings.parallel or 1, settings.max_length)
    given = Sources(model, layout, sources, max_length=longest, room=2 * longest + at_once)
    given.encode()
    rows, device, cache = len(given), model.device, given.cache
    place = torch.arange(longest, device=device)
    tokens = torch.zeros(rows, longest, dtype=torch.long, device=device)
    logs = torch.zeros(rows, longest, dtype=widest_float(device), device=device)
    is_open = torch.ones(rows, longest, dtype=torch.bool, device=device)
    stops_at = torch.full((rows, 1), longest, device=device)
    new = torch.zeros(rows, 0, dtype=torch.long, device=device)
    known = torch.zeros(rows, 0, dtype=torch.bool, device=device)  # which slots after the sources hold a token
    while bool(is_open.any()):
        widest = int(is_open.sum(dim=1).max())
        asked = is_open.logical_not().to(torch.uint8).argsort(dim=1, stable=True)[:, :widest]
        logits = _predict(given, tokens, new, asked, known)
        cache.filled += new.shape[1]
        allowed = torch.log_softmax(logits, dim=2)
        allowed.index_fill_(2, torch.tensor(layout.never, dtype=torch.long, device=device), NEVER)
        allowed[:, :, layout.stop].masked_fill_(asked < settings.min_length, NEVER)
        best = allowed.max(dim=2)
        asked_open = is_open.gather(1, asked)
        chosen = surest(best.values, asked_open, at_once)
        is_new = asked_open.gather(1, chosen)
        new = asked.gather(1, chosen)
        tokens.scatter_(1, new, torch.where(is_new, best.indices.gather(1, chosen), tokens.gather(1, new)))
        logs.scatter_(1, new, torch.where(is_new, best.values.gather(1, chosen).to(logs.dtype), logs.gather(1, new)))
        is_open.scatter_(1, new, False)
        ends = torch.where(~is_open & (tokens == layout.stop), place, longest).amin(dim=1, keepdim=True)
        stops_at = torch.minimum(stops_at, ends)
        is_open &= place < stops_at
        known = torch.cat([known, is_new], dim=1)
        yield []
    found = zip(tokens.tolist(), logs.tolist(), stops_at[:, 0].tolist(), strict=True)
    return [[_text(*target, settings.length_penalty)] for target in found]


def _predict(given: Sources, tokens: Tensor, new: Tensor, asked: Tensor, known: Tensor) -> Tensor:
    """Logits at a pseudo mask on each requested position; writes the newest known tokens to the cache first."""
    layout, fresh, count = given.layout, new.shape[1], asked.shape[1]
    assert layout.pseudo is not None
    ids = torch.cat([tokens.gather(1, new), torch.full_like(asked, layout.pseudo)], dim=1)
    positions = given.first_positions[:, None] + torch.cat([new, asked], dim=1)
    return given.model.extend(
        given.cache,
        ids[:, :, None],
        positions,
        torch.full_like(positions, layout.target_segment),
        filling_mask(torch.cat([given.readable, known], dim=1), fresh, count),
        select=slice(fresh, None),
    )


def _text(tokens: list[int], logs: list[float], stops_at: int, alpha: float) -> Hypothesis:
    ended = stops_at < len(tokens)
    size = stops_at + ended
    log = sum(logs[:size])
    score = log / length_penalty(size, alpha)
    return Hypothesis(tokens=tokens[:stops_at], log_probability=log, score=score, ended=ended)

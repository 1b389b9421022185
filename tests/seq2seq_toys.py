"""Windows of one segment, rows as text and a plain training loop for the sequence-to-sequence objectives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

import toys
from toys import EOS, SOS
from unicloze import keyed
from unicloze.example import Examples, collate
from unicloze.model.model import UnifiedModel
from unicloze.text.tokenizers import Tokenizer, whitespace_tokenizer
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows, windows_of


def text_windows(rows: int, tokens: int, vocabulary: Vocabulary, *, seed: int = 0) -> Windows:
    """Windows "[SOS] text [EOS]" with the given numbers of random text tokens."""
    rng = np.random.default_rng(seed)
    ids = np.empty((rows, tokens + 2), dtype=np.int32)
    ids[:, 1:-1] = vocabulary.ordinary[rng.integers(0, len(vocabulary.ordinary), (rows, tokens))]
    ids[:, 0], ids[:, -1] = SOS, EOS
    maskable = np.zeros(ids.shape, dtype=bool)
    maskable[:, 1:-1] = True
    return Windows(
        token_ids=ids,
        segment_ids=np.zeros_like(ids),
        lengths=np.full(rows, tokens + 2, dtype=np.int32),
        maskable=maskable,
        keys=keyed.key(seed, 1, np.arange(rows)),
        source=np.zeros(rows, np.int32),
        index=np.arange(rows),
    )


def spoken(text: str, rows: int = 1, extra: int = 4) -> tuple[Windows, Tokenizer]:
    """The same text in every row, and the tokenizer that spells it."""
    tokenizer = whitespace_tokenizer(text, extra)
    ids = tokenizer.encode_batch([text])[0]
    return windows_of([[ids]] * rows, tokenizer.vocabulary, keys=keyed.key(5, np.arange(rows))), tokenizer


def spelled(examples: Examples, tokenizer: Tokenizer, row: int = 0) -> str:
    """A row as text, with a bar between source and target."""
    ids, source = examples.input_ids[row, : examples.lengths[row]], int(examples.mutual[row])
    return f"{' '.join(tokenizer.tokens(ids[:source]))} | {' '.join(tokenizer.tokens(ids[source:]))}"


def predicted(examples: Examples, tokenizer: Tokenizer, row: int = 0) -> str:
    """What each slot of a row predicts, as text: "slot's token -> answer"."""
    target = examples.targets["lm"]
    real = target.weights[row] > 0
    shown = tokenizer.tokens(examples.input_ids[row, target.slots[row, real]])
    return ", ".join(f"{a} -> {b}" for a, b in zip(shown, tokenizer.tokens(target.labels[row, real]), strict=True))


def train(
    make: Callable[[int], Examples], *, vocab: int, positions: int, steps: int, rate: float = 4e-3, layers: int = 2
) -> UnifiedModel:
    """Train a small model on what `make` gives for each step."""
    model = toys.model(vocab=vocab, positions=positions, num_layers=layers, initializer_range=0.05)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 30, max(0.02, 1.1 - step / steps))
    )
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, make(step)).backward()
        optimizer.step()
        schedule.step()
    return model


def loss_of(model: UnifiedModel, examples: Examples) -> torch.Tensor:
    """Mean loss per prediction."""
    loss = model(collate(examples))["lm"]
    return loss.total / loss.weight


def measured(model: UnifiedModel, examples: Examples) -> float:
    """Mean loss per prediction, as a number."""
    with torch.no_grad():
        return float(loss_of(model, examples))

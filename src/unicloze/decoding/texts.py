"""What the verbs of a trained model share: texts as windows it can read, a check of what it says."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unicloze.errors import UniclozeError, UsageError
from unicloze.example import Examples, collate
from unicloze.mixtures import longest_window
from unicloze.model.heads import cross_entropy
from unicloze.text.tokenizers import Vocabulary
from unicloze.text.windows import Windows, windows_of
from unicloze.training.models import LoadedModel

Ints = npt.NDArray[np.int32]
Logs = npt.NDArray[np.float64]

SPECIALS_OF_A_WINDOW = 2
"""[SOS] and [EOS]."""

_PAIRS_AT_ONCE = 1 << 21
"""Pairs of a query and a key in one forward pass: a relative position bias takes about 400 bytes for each."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """As much of a text as the model reads at once.

    Args:
        text: Number of the text.
        first: Number of the piece's first token within the text.
        tokens: Without [SOS] and [EOS]. *Shape:* (tokens,)
    """

    text: int
    first: int
    tokens: Ints

    def __len__(self) -> int:
        return len(self.tokens)


def longest_text(model: LoadedModel) -> int:
    """Tokens of text the model reads at once: no more positions than it was trained on, less the special tokens."""
    return min(model.model.max_positions, longest_window(model.recipe)) - SPECIALS_OF_A_WINDOW


def check_text(text: str, name: str) -> None:
    """Refuse what is no text.

    Args:
        text: The text.
        name: What to call it in the message.

    Raises:
        UsageError: It is blank, or holds bytes that were no valid Unicode.
    """
    if not text.strip():
        raise UsageError(f"{name} is empty: give it at least one word")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(f"{name} is no valid Unicode at character {error.start}: give it in UTF-8") from error


def check_numbers(values: Tensor) -> None:
    """Refuse what a model says if it is no number: nan is also what stands for tokens that are not scored.

    Raises:
        UniclozeError: It is not.
    """
    if bool(values.isnan().any()):
        raise UniclozeError(
            "the model predicts nan: its training diverged or its weights are damaged: use another checkpoint"
        )


@torch.inference_mode()
def logits_of(model: LoadedModel, examples: Examples) -> tuple[Tensor, Tensor]:
    """What a model says of some rows with one target, and its labels.

    Returns:
        Logits, *Shape:* (rows, predictions, vocabulary), and labels, *Shape:* (rows, predictions).
    """
    batch = collate(examples, device=model.compute.device)
    with model.compute.autocast():
        ((name, logits),) = model.model.logits(batch).items()
    return logits, batch.targets[name].labels


@torch.inference_mode()
def log_probability(logits: Tensor, labels: Tensor) -> Logs:
    """log p of each label. *Shape:* (rows, predictions)

    Raises:
        UniclozeError: It is no number.
    """
    losses = cross_entropy(logits.flatten(0, 1), labels.flatten()).unflatten(0, labels.shape)
    check_numbers(losses)
    logs: Logs = -losses.double().cpu().numpy()
    return logs


def cut(model: LoadedModel, texts: Sequence[str]) -> tuple[list[Ints], list[Piece]]:
    """Tokens of each text, and the pieces that cover them without overlap; names of special tokens are plain text.

    Warns once if a text is longer than the model reads at once.

    Raises:
        UsageError: A text is blank or none.
    """
    if isinstance(texts, str):
        raise UsageError("texts is one string: give a list of texts")
    for i, text in enumerate(texts):
        check_text(text, f"text {i + 1} of {len(texts)}")
    tokens = model.tokenizer.encode_batch(texts)
    for i, ids in enumerate(tokens):
        if not len(ids):
            raise UsageError(f"text {i + 1} of {len(texts)} has no tokens: give it at least one word")
    return tokens, pieces_of(model, tokens)


def pieces_of(model: LoadedModel, tokens: Sequence[Ints]) -> list[Piece]:
    """The pieces that cover texts given as tokens; warns once if a text is longer than the model reads at once."""
    limit = longest_text(model)
    pieces = [
        Piece(text=i, first=first, tokens=ids[first : first + limit])
        for i, ids in enumerate(tokens)
        for first in range(0, len(ids), limit)
    ]
    long = sum(len(ids) > limit for ids in tokens)
    if long:
        warnings.warn(
            f"texts longer than the {limit} tokens the model reads at once ({long} of {len(tokens)}) are cut into "
            "consecutive windows, each read by itself",
            stacklevel=4,
        )
    return pieces


def one_segment(token_ids: Sequence[Ints], vocabulary: Vocabulary) -> Windows:
    """Windows "[SOS] text [EOS]" of the given tokens, with nothing to draw at random."""
    return windows_of([[ids] for ids in token_ids], vocabulary, keys=np.zeros(len(token_ids), dtype=np.uint64))


def rows_at_once(slots: int, batch_size: int) -> int:
    """Rows of one forward pass: `batch_size`, or as many of that length as memory should be spent on."""
    return max(1, min(batch_size, _PAIRS_AT_ONCE // slots**2))


def by_length(
    lengths: Sequence[int] | npt.NDArray[np.integer], batch_size: int, *, slots_per_token: int = 1
) -> Iterator[npt.NDArray[np.int64]]:
    """Numbers of the items, the longest first, in blocks for one forward pass each.

    Args:
        lengths: Tokens of each item.
        batch_size: Most items of a block.
        slots_per_token: Slots of a row for each token.

    Raises:
        UsageError: `batch_size` is below 1.
    """
    if batch_size < 1:
        raise UsageError(f"batch_size is {batch_size}: give 1 or more")
    each = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-each, kind="stable")
    first = 0
    while first < len(order):
        slots = (int(each[order[first]]) + SPECIALS_OF_A_WINDOW) * slots_per_token
        rows = rows_at_once(slots, batch_size)
        yield order[first : first + rows]
        first += rows

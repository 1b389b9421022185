"""Shared helpers for applying a trained model: cutting texts into windows, batching, and checking its outputs."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unicloze.arrays import Int32s
from unicloze.decoding.abilities import objective_of, read_as
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import Examples, Memory, collate
from unicloze.mixtures import longest_window
from unicloze.model.heads import cross_entropy
from unicloze.tasks import task_heads
from unicloze.tasks.rows import TextFormat, task_format
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows, windows_of
from unicloze.training.loading import LoadedModel

Logs = npt.NDArray[np.float64]

SPECIALS_OF_A_WINDOW = 2
"""[SOS] and [EOS]."""

_PAIRS_AT_ONCE = 1 << 21
"""Pairs of a query and a key in one forward pass: a relative position bias takes about 400 bytes for each."""


@dataclass(frozen=True, kw_only=True)
class ReadWindow:
    """As much of a text as the model reads at once."""

    text: int  # index of the text
    first: int  # index of the piece's first token within the text
    tokens: Int32s  # Token ids without [SOS] and [EOS]. *Shape:* (tokens,)

    def __len__(self) -> int:
        return len(self.tokens)


def longest_text(model: LoadedModel) -> int:
    """Tokens of text the model reads at once: at most the positions it was trained on, minus the special tokens."""
    return min(model.model.max_positions, longest_window(model.recipe)) - SPECIALS_OF_A_WINDOW


def text_format(model: LoadedModel) -> TextFormat:
    """How the model's rows write a text or a pair: as its task does, or as `embed` does without one.

    A model whose sources have no [SOS] (T5) writes its texts without it.
    """
    recipe, vocabulary = model.recipe, model.tokenizer.vocabulary
    if task_heads(recipe):
        own = task_format(recipe, vocabulary)
        return dataclasses.replace(own, longest=min(own.longest, model.model.max_positions))
    start = (vocabulary.sos,) if getattr(objective_of(recipe), "source_start", True) else ()
    last = max(0, recipe.model.num_segments - 1)
    first, second = (min(segment, last) for segment in read_as(recipe).segments)
    return TextFormat(
        start=start,
        between=(vocabulary.eos,) * recipe.use.separators,
        end=(vocabulary.eos,),
        segments=(first, second),
        longest=longest_text(model) + len(start) + 1,
    )


def check_text(text: str, name: str) -> None:
    """Reject blank or invalid text."""
    if not text.strip():
        raise UsageError(f"{name} is empty: give it at least one word")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(f"{name} is not valid Unicode at character {error.start}: give it in UTF-8") from error


def check_numbers(values: Tensor) -> None:
    """Reject nan outputs of a model, which would be mistaken for tokens that are not scored."""
    if bool(values.isnan().any()):
        raise UniclozeError(
            "the model predicts nan: its training diverged or its weights are damaged: use another checkpoint"
        )


@torch.inference_mode()
def logits_of(
    model: LoadedModel, examples: Examples, memory: Memory | None = None, *, updates: bool = False
) -> tuple[Tensor, Tensor]:
    """The model's predictions for examples with one target, and their labels.

    Returns:
        Logits, *Shape:* (rows, predictions, vocabulary), and labels, *Shape:* (rows, predictions).
    """
    device = model.compute.device
    text = torch.from_numpy(examples.text_slots()).to(device=device, dtype=torch.long) if updates else None
    batch = dataclasses.replace(collate(examples, device=device), memory=memory, text_slots=text)
    with model.compute.autocast():
        ((name, logits),) = model.model.logits(batch).items()
    return logits, batch.targets[name].labels


@torch.inference_mode()
def log_probability(logits: Tensor, labels: Tensor) -> Logs:
    """log p of each label. *Shape:* (rows, predictions)"""
    losses = cross_entropy(logits.flatten(0, 1), labels.flatten()).unflatten(0, labels.shape)
    check_numbers(losses)
    logs: Logs = -losses.cpu().double().numpy()
    return logs


def cut(
    model: LoadedModel, texts: Sequence[str], prompt: str = "", *, truncate: bool = False
) -> tuple[list[Int32s], list[ReadWindow]]:
    """Tokens of each text after a prompt, and the pieces that cover them; names of special tokens are plain text.

    Warns once if a text is longer than the model reads at once.
    """
    if isinstance(texts, str):
        raise UsageError("texts is one string: give a list of texts")
    for i, text in enumerate(texts):
        check_text(text, f"text {i + 1} of {len(texts)}")
    tokens = model.tokenizer.encode_batch([prompt + text for text in texts])
    for i, ids in enumerate(tokens):
        if not len(ids):
            raise UsageError(f"text {i + 1} of {len(texts)} has no tokens: give it at least one word")
    if truncate:
        tokens = [ids[: longest_text(model)] for ids in tokens]
    return tokens, pieces_of(model, tokens)


def pieces_of(model: LoadedModel, tokens: Sequence[Int32s]) -> list[ReadWindow]:
    """The pieces that cover tokenised texts; warns once if a text is longer than the model reads at once."""
    limit = longest_text(model)
    pieces = [
        ReadWindow(text=i, first=first, tokens=ids[first : first + limit])
        for i, ids in enumerate(tokens)
        for first in range(0, len(ids), limit)
    ]
    long = sum(len(ids) > limit for ids in tokens)
    if long:
        alone = "" if model.model.settings.memory else ", each read by itself"
        warnings.warn(
            f"texts longer than the {limit} tokens the model reads at once ({long} of {len(tokens)}) are cut into "
            f"consecutive windows{alone}",
            stacklevel=4,
        )
    return pieces


def one_segment(token_ids: Sequence[Int32s], vocabulary: Vocabulary) -> Windows:
    """Windows "[SOS] text [EOS]" of the given tokens, without random keys."""
    return windows_of([[ids] for ids in token_ids], vocabulary, keys=np.zeros(len(token_ids), dtype=np.uint64))


def rows_at_once(slots: int, batch_size: int) -> int:
    """Rows per forward pass: `batch_size`, or fewer if rows of `slots` slots would take too much memory."""
    return max(1, min(batch_size, _PAIRS_AT_ONCE // slots**2))


def by_length(
    lengths: Sequence[int] | npt.NDArray[np.integer], batch_size: int, *, slots_per_token: int = 1
) -> Iterator[npt.NDArray[np.int64]]:
    """Indices of the items, longest first, in blocks of one forward pass each."""
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

"""Scores how often a model guesses held-out content words, compared with a Kneser-Ney trigram."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch

from unicloze.arrays import Int64s
from unicloze.example import Examples, Target, collate
from unicloze.mixtures import parts
from unicloze.model.build import Model
from unicloze.objectives import defined
from unicloze.settings import ObjectiveSettings
from unicloze.text.content_words import ContentWords
from unicloze.text.counts import ABSENT, Counts, Neighbours
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import windows_of
from unicloze.training.loop import Compute

ROWS = 64
"""Number of sentences in a forward pass."""

Asking = Literal["cloze", "stepwise", "causal"]
"""The ability of an objective used to predict a word. With `causal` the model sees only the words on the left."""

Side = Literal["both", "left"]
"""What a word is guessed from: the words on both sides of it or those on its left."""


@dataclass(frozen=True, kw_only=True)
class WordScore:
    """Share of content words among the top guesses of a model and of counts.

    Args:
        words: Number of words tested, each in its own sentence.
        sees: Whether model and counts guessed from `both` sides or from the `left` only.
        top_1: Share of words that are the model's first guess.
        top_5: Share of words among the model's first five guesses.
        counts_top_1: The same for the counts' first guess.
        counts_top_5: The same for the counts' first five guesses.
        error: Standard error of the difference between `top_5` and `counts_top_5`.
    """

    words: int
    sees: Side
    top_1: float
    top_5: float
    counts_top_1: float
    counts_top_5: float
    error: float

    @classmethod
    def of(cls, ranks: Sequence[int] | Int64s, counted: Sequence[int] | Int64s, asking: Asking) -> WordScore:
        """Compute the score from the words' ranks under the model and the counts, 0 being the first guess."""
        own, other = np.asarray(ranks), np.asarray(counted)
        difference = (own < 5).astype(float) - (other < 5)
        return cls(
            words=len(own),
            sees="left" if asking == "causal" else "both",
            top_1=float((own < 1).mean()),
            top_5=float((own < 5).mean()),
            counts_top_1=float((other < 1).mean()),
            counts_top_5=float((other < 5).mean()),
            error=float(difference.std()) / math.sqrt(len(own)),
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields as a JSON-serialisable dictionary."""
        return dataclasses.asdict(self)


def way_to_ask(objective: ObjectiveSettings) -> tuple[Asking, ObjectiveSettings] | None:
    """The ability used to predict words, and the objective's part that defines it; None if no part does."""
    for asking in get_args(Asking):
        for part in parts(objective):
            if getattr(defined(part.settings), asking) is not None:
                return asking, part.settings
    return None


def ranks_by_counts(counts: Counts, words: ContentWords, asking: Asking) -> Int64s:
    """Rank of each word by the trigram, from two tokens on either side or on the left only. *Shape:* (words,)"""
    sides = (-2, -1) if asking == "causal" else (-2, -1, 1, 2)
    around = np.full((4, len(words)), ABSENT)
    for column, shift in zip(around, sides, strict=False):
        for number, (sentence, place) in enumerate(zip(words.sentences, words.places, strict=True)):
            column[number] = sentence[place + shift] if 0 <= place + shift < len(sentence) else ABSENT
    special = ~np.isin(around[2:], counts.vocabulary.ordinary)
    around[2:][special] = ABSENT
    ranks = [
        _ranks(torch.from_numpy(scores)[None], [answer], counts.vocabulary)
        for scores, answer in zip(counts.blanks(Neighbours(*around)), words.answers, strict=True)
    ]
    return np.concatenate([np.zeros(0, np.int64), *ranks])


@torch.no_grad()
def ranks_by_model(
    model: Model, words: ContentWords, vocabulary: Vocabulary, way: tuple[Asking, ObjectiveSettings], compute: Compute
) -> Int64s:
    """Rank of each word among the ordinary tokens. *Shape:* (words,)"""
    model.eval()
    ranks = np.zeros(len(words), dtype=np.int64)
    answers = np.array(words.answers)
    for block, examples in _rows(words, vocabulary, *way):
        with compute.autocast():
            (logits,) = model.for_use().logits(collate(examples, device=compute.device)).values()
        ranks[block] = _ranks(logits[:, 0].float().cpu(), answers[block], vocabulary)
    return ranks


def _rows(
    words: ContentWords, vocabulary: Vocabulary, asking: Asking, settings: ObjectiveSettings
) -> Iterator[tuple[Int64s, Examples]]:
    """Indices of sentences of similar length, and their rows with one prediction each."""
    lay_out = getattr(defined(settings), asking)
    order = np.argsort([len(sentence) for sentence in words.sentences], kind="stable")
    for block in np.split(order, range(ROWS, len(order), ROWS)):
        texts = [[np.array(words.sentences[number], dtype=np.int32)] for number in block]
        windows = windows_of(texts, vocabulary, keys=np.zeros(len(block), dtype=np.uint64))
        row, position = np.arange(len(block)), np.array(words.places)[block] + 1
        if asking == "causal":
            examples = lay_out(windows, vocabulary, settings)
            which = np.cumsum(windows.maskable, axis=1)[row, position] - 1
        else:
            steps = np.full(windows.token_ids.shape, -1, dtype=np.int32)
            steps[row, position] = 0
            examples = lay_out(windows, steps, vocabulary, settings)
            which = np.zeros(len(block), dtype=np.int64)
        ((name, target),) = examples.targets.items()
        only = Target(
            slots=target.slots[row, which][:, None],
            labels=target.labels[row, which][:, None],
            weights=target.weights[row, which][:, None],
        )
        yield block, dataclasses.replace(examples, targets={name: only})


def _ranks(scores: torch.Tensor, answers: Sequence[int] | Int64s, vocabulary: Vocabulary) -> Int64s:
    """Number of ordinary tokens ranked before each answer; on ties the lower id comes first. *Shape:* (rows,)"""
    ordinary = torch.from_numpy(vocabulary.ordinary).long()
    wanted = torch.as_tensor(answers).long()[:, None]
    own, others = scores.gather(1, wanted), scores[:, ordinary]
    before = ~(others <= own) | ((others == own) & (ordinary < wanted))  # NaN ranks first
    ranks: Int64s = before.sum(dim=1).numpy()
    return ranks

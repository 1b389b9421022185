"""Scores answers in the blanks of texts, for zero- and few-shot prompting.

A causal model predicts the answer and the text after it from the text before it. A model that predicts step by step (PAR)
predicts the answer from both sides, token by token from left to right, with a mask at each token not yet known.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from unicloze.arrays import Flags, Int32s
from unicloze.decoding.inputs import (
    by_length,
    check_predicts_tokens,
    check_text,
    lacks,
    log_probability,
    logits_of,
    longest_text,
    objective_of,
    one_segment,
    part_with,
)
from unicloze.errors import UniclozeError, UsageError
from unicloze.example import Examples, Target
from unicloze.objectives import Ability, defined
from unicloze.settings import ObjectiveSettings, Recipe
from unicloze.text.windows import Windows
from unicloze.training.loading import LoadedModel

By = Literal["par", "chain"]

TEXTS_AT_ONCE = 1000
"""Texts encoded together: the tokenizer's output takes far more memory than the part that is kept."""

ABILITIES: dict[By, Ability] = {"par": "stepwise", "chain": "causal"}
"""Ability needed for each way to fill a blank, preferred way first."""


@dataclass(frozen=True, kw_only=True)
class Blank:
    """A text with an answer in it."""

    before: str  # text before the answer, without trailing white space, which belongs to the answer
    answer: str  # the answer
    after: str = ""  # text after the answer
    place: str = "a text"  # its origin, for messages


@dataclass(frozen=True, kw_only=True)
class Filled:
    """Likelihood of an answer."""

    # log p of each scored token, in nats; nan for a token the model never predicts ([UNK]). A causal model scores the
    # answer and the text after it, except [UNK] there; other models score the answer. *Shape:* (tokens,)
    logs: npt.NDArray[np.float64]
    greedy: Flags  # Whether each is the likeliest of all ordinary tokens at its position. *Shape:* (tokens,)


def way_of(recipe: Recipe) -> By:
    """How a model fills blanks: `par` if its objective defines it, else `chain`."""
    objective = objective_of(recipe)
    found = next((by for by, ability in ABILITIES.items() if part_with(objective, ability) is not None), None)
    if found is None:
        raise UsageError(
            f"{lacks(objective, 'causal', 'the likelihood of an answer')}: use a model of another objective, such as causal "
            "or unilmv2 with the target par"
        )
    return found


def fill_blanks(
    model: LoadedModel,
    blanks: Sequence[Blank],
    *,
    batch_size: int = 64,
    never_first: Int32s | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> list[Filled]:
    """Score each answer; texts too long for the model lose their beginning, with one warning.

    A score depends neither on the other blanks nor on `batch_size`, up to rounding.
    """
    by = way_of(model.recipe)
    check_predicts_tokens(model, "say how likely an answer is")
    settings = part_with(objective_of(model.recipe), ABILITIES[by])
    assert settings is not None
    rows = _rows(model, blanks, by)
    asked = [int(flags.sum()) for _, flags in rows]
    lengths = [
        len(tokens) + 2 * count if by == "par" else 2 * len(tokens)
        for (tokens, _), count in zip(rows, asked, strict=True)
    ]
    special = torch.from_numpy(model.tokenizer.vocabulary.special).long()
    banned = torch.from_numpy(np.zeros(0, np.int32) if never_first is None else never_first).long()
    found: list[Filled] = [Filled(logs=np.zeros(0), greedy=np.zeros(0, bool))] * len(blanks)
    for block in by_length(lengths, batch_size):
        windows = one_segment([rows[number][0] for number in block], model.tokenizer.vocabulary)
        flags = np.zeros(windows.token_ids.shape, dtype=bool)
        for row, number in enumerate(block):
            flags[row, 1 : 1 + len(rows[number][1])] = rows[number][1]
        examples = _lay_out(model, windows, flags & windows.maskable, settings, by)
        logs, greedy = _ask(model, examples, special, banned)
        for row, number in enumerate(block):
            known = windows.maskable[row][flags[row]]
            filled = Filled(logs=np.full(asked[number], np.nan), greedy=np.zeros(asked[number], dtype=bool))
            filled.logs[known] = logs[row, : known.sum()]
            filled.greedy[known] = greedy[row, : known.sum()]
            found[number] = filled
        progress(len(block))
    return found


def _rows(model: LoadedModel, blanks: Sequence[Blank], by: By) -> list[tuple[Int32s, Flags]]:
    """Tokens of each text, cut to what the model reads, and which of them are scored."""
    limit, cut, unknown = longest_text(model), 0, model.tokenizer.vocabulary.unk
    for blank in blanks:
        check_text(blank.answer, f"the answer of {blank.place}")
    rows = []
    for blank, (tokens, offsets) in _encoded(model, blanks):
        first = len(blank.before)
        behind = offsets[:, 0] >= first + len(blank.answer)
        asked = (offsets[:, 1] > first) & ~(behind if by == "par" else behind & (tokens == unknown))
        over = len(tokens) - limit
        if not asked.any():
            raise UniclozeError(f"{blank.place}: the answer '{blank.answer}' has no tokens: give it a word")
        if over > int(asked.argmax()):
            raise UniclozeError(
                f"{blank.place}: the answer and what follows it have {len(tokens) - int(asked.argmax())} tokens, but the "
                f"model reads {limit} at once: shorten them"
            )
        cut += over > 0
        rows.append((tokens[max(0, over) :].copy(), asked[max(0, over) :].copy()))  # copied to free the cut part
    if cut:
        warnings.warn(
            f"{cut:,} of {len(blanks):,} texts are longer than the {limit} tokens the model reads at once and lose their "
            "beginning",
            stacklevel=3,
        )
    return rows


def _encoded(model: LoadedModel, blanks: Sequence[Blank]) -> Iterator[tuple[Blank, tuple[Int32s, Int32s]]]:
    """Each blank with the tokens and offsets of its text, encoded in groups to bound memory."""
    for first in range(0, len(blanks), TEXTS_AT_ONCE):
        part = blanks[first : first + TEXTS_AT_ONCE]
        texts = [blank.before + blank.answer + blank.after for blank in part]
        yield from zip(part, model.tokenizer.encode_batch_with_offsets(texts), strict=True)


def _lay_out(model: LoadedModel, windows: Windows, asked: Flags, settings: ObjectiveSettings, by: By) -> Examples:
    """Examples that predict the scored tokens, from left to right."""
    vocabulary = model.tokenizer.vocabulary
    if by == "par":
        steps = np.where(asked, np.cumsum(asked, axis=1) - 1, -1).astype(np.int32)
        stepwise = defined(settings).stepwise
        assert stepwise is not None
        return stepwise(windows, steps, vocabulary, settings)
    causal = defined(settings).causal
    assert causal is not None
    examples = causal(windows, vocabulary, settings)
    ((name, target),) = examples.targets.items()
    row, position = np.nonzero(asked)
    place = (np.cumsum(asked, axis=1) - 1)[row, position]
    rank = (np.cumsum(windows.maskable, axis=1) - 1)[row, position]
    shape = len(windows), max(1, int(asked.sum(axis=1).max(initial=0)))
    slots = np.zeros((*shape, *target.slots.shape[2:]), dtype=np.int32)
    labels, weights = np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.float32)
    slots[row, place], labels[row, place], weights[row, place] = target.slots[row, rank], target.labels[row, rank], 1.0
    return dataclasses.replace(examples, targets={name: Target(slots=slots, labels=labels, weights=weights)})


@torch.inference_mode()
def _ask(
    model: LoadedModel, examples: Examples, special: torch.Tensor, never_first: torch.Tensor
) -> tuple[npt.NDArray[np.float64], Flags]:
    """log p of each label, and whether it is the likeliest ordinary token. *Shape:* (rows, predictions) each"""
    logits, labels = logits_of(model, examples)
    logs = log_probability(logits, labels)
    logits[:, :, special.to(logits.device)] = -torch.inf
    logits[:, 0, never_first.to(logits.device)] = -torch.inf
    greedy: Flags = (logits.argmax(dim=-1) == labels).cpu().numpy()
    return logs, greedy

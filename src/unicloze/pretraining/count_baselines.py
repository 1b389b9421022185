"""The rival of a pre-training run: a Kneser-Ney trigram of its training text, on the held-out predictions of the run.

Stored in RUN/baselines.json, so that a resumed run does not count again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from unicloze.arrays import Flags, Int32s, Int64s
from unicloze.decoding.inputs import one_segment, part_with, rows_to_predict
from unicloze.example import Examples, Kind, collate, predicts_tokens
from unicloze.files import BASELINES, write_file
from unicloze.model.build import Model
from unicloze.objectives import Ability
from unicloze.objectives.row_builder import unknown_words
from unicloze.settings import ObjectiveSettings, Recipe
from unicloze.text.counts import ABSENT, ContentWords, Counts, Neighbours, content_words, open_counts
from unicloze.text.prepare import Prepared
from unicloze.text.sampler import evenly_spaced
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows
from unicloze.training.batches import MicroBatch
from unicloze.training.loop import Compute
from unicloze.visibility import bool_mask

SCHEMA = 5
ROWS = 64
"""Number of sentences in a forward pass."""
MOST_WORDS = 400
"""Largest number of content words a model is tested on."""
FEWEST_WORDS = 50
"""With fewer content words the test is skipped as too imprecise."""
MOST_SCORED = 2**29
"""Blanks are predicted up to this number of scores, blanks times ids (17,589 blanks of 30,522 ids), evenly spread."""
FEWEST_SCORED = 2048
"""But up to this number of blanks at least."""


@dataclass(frozen=True, kw_only=True)
class Baselines:
    """Results of counts of the training text on held-out text."""

    # perplexity of the counts by figure of the run and by kind of count, see `COUNTED`
    perplexities: Mapping[str, Mapping[str, float]]
    counted: int  # number of training tokens counted
    tokens: int  # number of training tokens
    words: ContentWords  # held-out content words; empty if there are too few or the objective cannot predict them
    ranks: Sequence[int]  # rank of each word under the trigram

    def summary(self) -> dict[str, Any]:
        """The part stored in the ledger."""
        return {"perplexity": self.perplexities, "counted": self.counted, "tokens": self.tokens}


def perplexities_of(
    counts: Counts,
    examples: Examples,
    name: str,
    windows: Windows | None,
    *,
    memory: bool = False,
    before: Int64s | None = None,
) -> dict[str, float] | None:
    """Perplexities of counts on the predictions of a target that a perplexity counts; None if there are none.

    With `memory`, rows that continue others are predicted from the end of these too; with `before`, from the two tokens that
    it has for each row. *Shape:* (rows, 2), `ABSENT` where there is none
    """
    target = examples.targets[name].of_ordinary(counts.vocabulary.ordinary)
    counted = target.weights > 0 if target.counted is None else target.counted & (target.weights > 0)
    if not counted.any() or not target.counted_weight:
        return None
    around = _around(examples, name, counted, counts.vocabulary, windows, memory=memory, before=before)
    labels, weights = target.labels[counted].astype(np.int64), target.weights[counted].astype(np.float64)
    scale = weights.sum() / target.counted_weight  # 1 unless the objective weighs its predictions
    chosen = np.arange(len(labels))
    if (around.right1 == ABSENT).all():
        trigram = counts.following(around.left2, around.left1, labels)
    else:
        chosen = evenly_spaced(min(len(labels), max(FEWEST_SCORED, MOST_SCORED // counts.vocabulary.size)), len(labels))
        scores = counts.blanks(Neighbours(*(column[chosen] for column in around)))
        trigram = np.array([found[label] for found, label in zip(scores, labels[chosen].tolist(), strict=True)])
    means = {
        "unigram": np.average(np.log(counts.unigram[labels]), weights=weights),
        "trigram": np.average(np.log(trigram), weights=weights[chosen]),
    }
    return {kind: math.exp(min(700.0, -scale * mean)) for kind, mean in means.items()}


def _around(
    examples: Examples,
    name: str,
    counted: Flags,
    vocabulary: Vocabulary,
    windows: Windows | None,
    *,
    memory: bool = False,
    before: Int64s | None = None,
) -> Neighbours:
    """The neighbours in the text that the row shows to each counted prediction of a target."""
    target, columns = examples.targets[name], [[np.zeros(0, np.int64)] for _ in Neighbours._fields]
    shown, seams = _shown(examples, vocabulary, windows), _seams(examples, vocabulary, windows)
    past = _before(shown, seams, windows if memory else None) if before is None else before
    for row in np.flatnonzero(counted.any(axis=1)).tolist():
        length = int(examples.lengths[row])
        slots = target.slots[row, counted[row]].reshape(counted[row].sum(), -1)
        if name.startswith("lm"):
            text = np.concatenate([np.where(shown[row, :1] < 0, past[row, 1:], shown[row, :1]), shown[row, 1:length]])
            near = [*_next_to(slots[:, 0], text, seams[row, :length], past[row, :1], examples, row, vocabulary)]
        else:
            sees = (bool_mask(examples.intervals[row, slots], length) & (slots >= 0)[:, :, None]).any(axis=1)
            positions = examples.position_ids[row, :length]
            seam = positions[seams[row, :length]].min(initial=np.iinfo(np.int32).max)
            place = positions[slots[:, 0]] + (0 if target.places is None else target.places[row, counted[row]])
            positions, place = (each - (each > seam) for each in (positions, place))
            near = []
            for at in (place + shift for shift in (-2, -1, 1, 2)):
                hits = sees & (shown[row, :length] >= 0) & (positions == at[:, None])
                near.append(np.where(hits.any(axis=1), shown[row, hits.argmax(axis=1)], ABSENT))
            for shift in (-2, -1) if before is not None else ():  # the text of a row begins at position 1
                first = (place + shift).clip(-1, 0)
                unseen = (near[shift + 2] == ABSENT) & (place + shift == first)
                near[shift + 2] = np.where(unseen, past[row, first + 1], near[shift + 2])
        for column, values in zip(columns, near, strict=True):
            column.append(values)
    left2, left1, right1, right2 = (np.concatenate(column) for column in columns)
    right1, right2 = (np.where(np.isin(column, vocabulary.ordinary), column, ABSENT) for column in (right1, right2))
    begins = np.isin(left1, (ABSENT, vocabulary.eos))
    return Neighbours(np.where(begins, ABSENT, left2), left1, right1, np.where(right1 < 0, ABSENT, right2))


def _shown(examples: Examples, vocabulary: Vocabulary, windows: Windows | None) -> Int64s:
    """The text token in each slot, [EOS] where a document begins or ends; else `ABSENT`. *Shape:* (rows, slots)"""
    ids = examples.input_ids.astype(np.int64)
    ends = np.zeros(ids.shape, dtype=bool)
    if windows is not None:
        row, place = np.arange(len(ids))[:, None], np.minimum(examples.position_ids, windows.token_ids.shape[1] - 1)
        ends = np.isin(ids, (vocabulary.sos, vocabulary.eos)) & (windows.token_ids[row, place] == ids)
        cut = _cut(windows)
        ends &= True if cut is None else ~cut[row, place]
    text = np.isin(ids, vocabulary.ordinary) | unknown_words(ids, vocabulary)
    text &= np.isin(examples.kinds, (Kind.CONTEXT, Kind.ORIGINAL))
    return np.where(text, ids, np.where(ends, vocabulary.eos, ABSENT))


def _seams(examples: Examples, vocabulary: Vocabulary, windows: Windows | None) -> Flags:
    """Whether a slot is an [EOS] within a text that goes on behind it: that of S1 before its S2. *Shape:* (rows, slots)"""
    ids, positions = examples.input_ids, examples.position_ids
    cut = None if windows is None else _cut(windows)
    if windows is None or cut is None:
        return np.zeros(ids.shape, dtype=bool)
    row, last = np.arange(len(ids))[:, None], windows.token_ids.shape[1] - 1
    place, behind = np.minimum(positions, last), np.minimum(positions + 1, last)
    inside = (place > 0) & (place < windows.lengths[:, None] - 1)
    if windows.negative is not None:  # S2 is not what follows S1
        inside &= ~windows.negative[:, None]
    seams: Flags = inside & cut[row, place] & (ids == vocabulary.eos) & (windows.token_ids[row, place] == ids)
    # The [EOS] of a source that a target follows may be at the same position by chance.
    next_ids, next_kinds, next_positions = (np.roll(each, -1, axis=1) for each in (ids, examples.kinds, positions))
    text = np.isin(next_kinds, (Kind.CONTEXT, Kind.ORIGINAL))
    other = (next_positions == positions + 1) & text & (next_ids != windows.token_ids[row, behind])
    seams &= (next_positions > positions) & ~other
    return seams


def _cut(windows: Windows) -> Flags | None:
    """`Windows.cut`; the ends of a pair's texts are cuts, since of these it is not known whether a document ends there."""
    if windows.negative is None:
        return windows.cut
    cut = np.zeros(windows.token_ids.shape, dtype=bool)
    cut[:, :-1] = np.diff(windows.segment_ids, axis=1) == 1
    cut[:, 0] = cut[np.arange(len(cut)), windows.lengths - 1] = True
    return cut


def _before(shown: Int64s, seams: Flags, windows: Windows | None) -> Int64s:
    """The last two tokens of the row that each row continues from the left, else `ABSENT`. *Shape:* (rows, 2)"""
    found = np.full((len(shown), 2), ABSENT)
    if windows is None or windows.continues is None or windows.new is not None:
        return found  # overlapping rows do not begin where the former ends
    from_left = windows.continues if windows.backward is None else windows.continues & ~windows.backward
    rows = {place: row for row, place in enumerate(zip(windows.source.tolist(), windows.index.tolist(), strict=True))}
    for row in np.flatnonzero(from_left).tolist():
        former = rows.get((int(windows.source[row]), int(windows.index[row]) - 1))
        if former is not None:
            text = slice(0, int(windows.lengths[former]) - 1)
            found[row] = shown[former, text][~seams[former, text]][-2:]
    return found


def _next_to(
    slots: Int32s, shown: Int64s, seams: Flags, second: Int64s, examples: Examples, row: int, vocabulary: Vocabulary
) -> Neighbours:
    """Neighbours of tokens predicted next from slots: these and those before them, or behind them from right to left.

    What the first slot shows comes after `second`.
    """
    backward = (examples.intervals[row, slots, 0] == slots) & (slots > 0)
    ids, place = examples.input_ids[row], slots.copy()
    for number in np.flatnonzero(np.isin(ids[slots], vocabulary.extra)).tolist():
        place[number] = np.flatnonzero(ids == ids[slots[number]])[0] - 1  # behind a sentinel the source goes on
    joined = np.cumsum(~seams) - 1  # without seams; a seam is at the slot before it
    place = np.where(place < 0, place, joined[place] + (backward & seams[place]))
    padded = np.concatenate([shown[~seams], [ABSENT, ABSENT], second])  # place -1 is before the first slot
    near, far = padded[place], padded[np.where(backward, place + 1, place - 1)]
    at_sentinel = np.isin(ids[slots - 1], vocabulary.extra) & ~np.isin(ids[slots], vocabulary.extra)
    for number in np.flatnonzero(at_sentinel & ~backward & (slots > 0)).tolist():  # the first token of a span
        first = np.flatnonzero(ids == ids[slots[number] - 1])[0]
        if 0 < first < slots[number] - 1:
            far[number] = shown[first - 1]
    left = [np.where(backward, ABSENT, tokens) for tokens in (far, near)]
    right = [np.where(backward, tokens, ABSENT) for tokens in (near, far)]
    return Neighbours(*left, *right)


def way_to_ask(objective: ObjectiveSettings) -> Ability | None:
    """The ability used to predict words; None if no part defines any. With `causal` the model sees only those on the left."""
    return next((ability for ability in get_args(Ability) if part_with(objective, ability) is not None), None)


def ranks_by_counts(counts: Counts, words: ContentWords, asking: Ability) -> Int64s:
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
    model: Model, recipe: Recipe, words: ContentWords, vocabulary: Vocabulary, asking: Ability, compute: Compute
) -> Int64s:
    """Rank of each word among the ordinary tokens. *Shape:* (words,)"""
    model.eval()
    ranks, answers = np.zeros(len(words), dtype=np.int64), np.array(words.answers)
    order = np.argsort([len(sentence) for sentence in words.sentences], kind="stable")
    for block in np.split(order, range(ROWS, len(order), ROWS)):
        windows = one_segment([np.array(words.sentences[number], dtype=np.int32) for number in block], vocabulary)
        asked = np.zeros(windows.token_ids.shape, dtype=bool)
        asked[np.arange(len(block)), np.array(words.places)[block] + 1] = True
        steps = None if asking == "causal" else np.where(asked, 0, -1).astype(np.int32)
        examples = rows_to_predict(recipe, asking, windows, vocabulary, steps, asked)
        with compute.autocast():
            (logits,) = model.for_use().logits(collate(examples, device=compute.device)).values()
        ranks[block] = _ranks(logits[:, 0].float().cpu(), answers[block], vocabulary)
    return ranks


def _ranks(scores: torch.Tensor, answers: Sequence[int] | Int64s, vocabulary: Vocabulary) -> Int64s:
    """Number of ordinary tokens ranked before each answer; on ties the lower id comes first. *Shape:* (rows,)"""
    ordinary = torch.from_numpy(vocabulary.ordinary).long()
    wanted = torch.as_tensor(answers).long()[:, None]
    own, others = scores.gather(1, wanted), scores[:, ordinary]
    before = ~(others <= own) | ((others == own) & (ordinary < wanted))  # NaN ranks first
    ranks: Int64s = before.sum(dim=1).numpy()
    return ranks


def open_baselines(
    recipe: Recipe, prepared: Prepared, folder: Path, blocks: Mapping[str, MicroBatch]
) -> Baselines | None:
    """The baselines of a run, computed once and stored in its directory; None if no token is predicted."""
    way, sources = way_to_ask(recipe.objective), prepared.train
    made_from = {
        "schema": SCHEMA,
        "fingerprint": prepared.fingerprint,
        "sources": [source.name for source in sources],
        "asking": way,
        "longest": recipe.data.window - 2,
        "predictions": _digest(blocks),
    }
    known = read_known(folder / BASELINES)
    if known.get("made_from") == made_from:
        values = known["baselines"]
        return Baselines(**{**values, "words": ContentWords(**values["words"])})
    counts = open_counts(prepared, sources)
    perplexities = {
        f"{label}.{target}" if len(blocks) > 1 else target: found
        for label, block in blocks.items()
        for target in filter(predicts_tokens, block.examples.targets)
        if (found := perplexities_of(counts, block.examples, target, block.windows, memory=recipe.model.memory > 0))
    }
    if not perplexities:
        return None
    longest, words = recipe.data.window - 2, ContentWords(sentences=[], places=[])
    if way is not None:
        every = content_words(prepared.heldout, counts, prepared.tokenizer, longest=longest, most=MOST_WORDS)
        words = every if len(every) >= FEWEST_WORDS else words
    baselines = Baselines(
        perplexities=perplexities,
        counted=counts.total,
        tokens=sum(source.num_tokens for source in sources),
        words=words,
        ranks=ranks_by_counts(counts, words, way).tolist() if way else [],
    )
    content = {"made_from": made_from, "baselines": dataclasses.asdict(baselines)}
    write_file(folder / BASELINES, json.dumps(content) + "\n", "the baselines")
    return baselines


def _digest(blocks: Mapping[str, MicroBatch]) -> str:
    """Identifies what is predicted from what."""
    found = hashlib.sha256()
    for label, block in blocks.items():
        rows = block.examples
        for name, target in rows.targets.items():
            found.update(f"{label} {name}".encode())
            of_rows = rows.input_ids, rows.position_ids, rows.intervals
            for column in (*of_rows, target.slots, target.labels, target.weights):
                found.update(np.ascontiguousarray(column).data)
    return found.hexdigest()


def read_known(path: Path) -> dict[str, Any]:
    """Content of a JSON file; empty if it is missing or damaged, so that it is made again."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}

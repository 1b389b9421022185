"""Text generation tasks: fine-tuning on sources and targets (UniLMv2, Section 3.4; UniLM v1, Section 2.5).

A row is "[SOS] source [EOS] target [EOS]"; the source sees itself, the target sees the source and its own past. The target
is trained in one of three ways (`generation.learning`):

- `pseudo`: the row is followed by a pseudo mask for each target token, [EOS] included, with its position and segment. It
  sees the source, the target before its token, and itself; with blocks, the target before its block, and its block.
- `masked`: a share of the target, [EOS] included, is masked in place and predicted there.
- `next`: every slot from the source's [EOS] on predicts the next token. A model that reads from left to right also reads
  the source that way.

Without random draws, every token is predicted as in decoding: once, from the source and the true tokens before it. [UNK] is
visible but never predicted, since decoding never writes it. All draws are keyed by row.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from unicloze import keyed, visibility
from unicloze.arrays import Int32s
from unicloze.errors import UniclozeError
from unicloze.example import Examples
from unicloze.keyed import Bits
from unicloze.mixtures import parts
from unicloze.objectives import OBJECTIVES, masked, masking, seq2seq, unilmv2
from unicloze.objectives.groups import Corruption
from unicloze.objectives.row_builder import MaskedTokens, without_unknown
from unicloze.records.record import Record
from unicloze.rules import Problem
from unicloze.settings import Reading, Recipe, TaskSettings
from unicloze.tasks.columns import TARGET, has_target, reference, targets_of, texts_of
from unicloze.tasks.extraction import encode_passages, sentences
from unicloze.tasks.rows import sizes_within
from unicloze.tasks.several import SeveralSettings, has_parts, most_common
from unicloze.tasks.task import Baseline, Task
from unicloze.text.tokenizers import Tokenizer
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows, windows_of

Keep = Literal["beginning", "end", "chunk"]


def cut_texts(
    parts: Sequence[Int32s],
    room: int,
    keep: Keep | Sequence[Keep],
    chunk_by: Collection[int] | None = None,
    anchors: Mapping[int, tuple[int, int]] | None = None,
) -> list[Int32s]:
    """Shorten the longest parts, to equal length if necessary, until all fit with separators between them."""
    kept = []
    for number, size in enumerate(sizes_within([len(part) for part in parts], room - (len(parts) - 1))):
        part, how = parts[number], keep if isinstance(keep, str) else keep[number]
        if how == "chunk":
            choosing = range(len(parts)) if chunk_by is None else chunk_by
            others = [parts[other] for other in choosing if other != number]
            kept.append(chunk(part, others, size, (anchors or {}).get(number)))
        else:
            kept.append(part[:size] if how == "beginning" else part[len(part) - size :])
    return kept


def chunk(part: Int32s, others: Sequence[Int32s], size: int, anchor: tuple[int, int] | None = None) -> Int32s:
    """The chunk of `size` consecutive tokens that contains another part as a whole, or else the most tokens of the others.

    Of equal chunks, the first is taken (UniLM v1, Sections 3.2 and 3.3).
    """
    starts = len(part) - size + 1
    if starts <= 1 or not size:
        return part[:size]
    score = np.zeros(starts)
    for token in np.unique(np.concatenate([*others, part[:0]])):
        seen = np.cumsum(np.concatenate([[0], part == token]))
        score += seen[size:] > seen[:starts]
    for other in others:
        if 0 < len(other) <= size:
            views = np.lib.stride_tricks.sliding_window_view(part, len(other))
            found = np.cumsum(np.concatenate([[0], (views == other).all(axis=1)]))
            last = size - len(other) + 1
            score += len(part) * (found[last : last + starts] > found[:starts])
    if anchor is not None:
        earliest = min(max(0, anchor[1] + 1 - size), anchor[0], starts - 1)
        score[:earliest], score[min(anchor[0], starts - 1) + 1 :] = -1, -1
    first = int(score.argmax())
    return part[first : first + size]


Learning = Literal["pseudo", "masked", "next"]

HISTORY = "history"
"""Role of the earlier turns of a conversation, of which the latest are kept."""
SOURCE_SPECIALS = 2
"""[SOS] and the [EOS] that ends a source."""
SEGMENTS_OF_UNILM_V1 = 6
"""Rows of UniLM v1's segment table; it uses separate segments for sequence-to-sequence rows."""


@dataclass(frozen=True, kw_only=True)
class SourceTarget:
    """A source and its target as tokens, without [SOS] and the two [EOS]."""

    record: int  # index of their record
    source: Int32s  # *Shape:* (tokens,)
    target: Int32s | None  # None if unknown. *Shape:* (tokens,)
    slots: int  # slots of their training row
    cut: bool = False  # whether the source lacks a part of the record's texts


@dataclass(frozen=True, kw_only=True)
class WritingSettings(SeveralSettings):
    """Settings of text generation, in addition to those of `generation`."""

    kind: str = "generation"

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Reject invalid values of `generation`."""
        yield from super().problems(recipe)
        if self.parts and recipe.generation.source != ["source"]:
            yield "task.parts", "each entry names its own source: leave out generation.source"
        generation = recipe.generation
        for role in generation.chunk_by or []:
            if role not in generation.source:
                known = ", ".join(generation.source)
                yield "generation.chunk_by", f"'{role}' is not part of the source, which has {known}"
        if generation.mask_share + generation.random_share > 1:
            yield "generation.random_share", "with generation.mask_share it must be at most 1"
        if recipe.model.decoder_layers and learning_of(recipe) != "next":
            yield "generation.learning", "an encoder-decoder learns to predict the next token: set it to next"


def learning_of(recipe: Recipe) -> Learning:
    """How a recipe trains targets: as set, or else as its model was trained."""
    if recipe.generation.learning is not None:
        return recipe.generation.learning
    return "next" if all("lm" in part.settings.targets for part in parts(recipe.objective)) else "pseudo"


def with_learning(recipe: Recipe) -> Recipe:
    """The recipe with `generation.learning` resolved."""
    return recipe.changed("generation", learning=learning_of(recipe))


def reads_left_to_right(recipe: Recipe) -> bool:
    """Whether the source is read from left to right, as the target is."""
    causal = recipe.use.visibility == "left_to_right" or "local" in recipe.model.layer_visibility
    return causal and learning_of(recipe) == "next"


def pseudo_id(recipe: Recipe, vocabulary: Vocabulary) -> int:
    """Token id of the pseudo mask, which has its own if the model was trained with one."""
    for part in parts(recipe.objective) if learning_of(recipe) == "pseudo" else ():
        generates = OBJECTIVES[part.settings.name].generates
        layout = None if generates is None else generates(part.settings, vocabulary)
        if layout is not None and layout.pseudo is not None and layout.pseudo == vocabulary.pseudo:
            return layout.pseudo
    return vocabulary.mask


def segments_of(recipe: Recipe) -> tuple[int, int]:
    """Segments of source and target."""
    if recipe.generation.segment_ids is not None:
        return recipe.generation.segment_ids[0], recipe.generation.segment_ids[-1]
    if recipe.model.num_segments >= SEGMENTS_OF_UNILM_V1:
        return 4, 5
    return 0, min(1, max(0, recipe.model.num_segments - 1))


def format_of(recipe: Recipe) -> seq2seq.PrefixSettings:
    """Layout of rows whose slots predict the next token; a model with a decoder has that of its pre-training.

    The positions of its targets count from 0: in fine-tuning no span keeps its position in the source (MASS).
    """
    settings = seq2seq.PrefixSettings(mask_rate=1.0, segment_ids=list(segments_of(recipe)))
    if not recipe.model.decoder_layers:
        return settings
    trained = next(part.settings for part in parts(recipe.objective) if isinstance(part.settings, seq2seq.SourceTarget))
    starts: Any = list(trained.starts)
    return dataclasses.replace(settings, source_start=trained.source_start, target_start=starts, restart_positions=True)


def room(recipe: Recipe) -> tuple[int, int]:
    """Maximum tokens of a source and of a target, special tokens included."""
    generation, longest = recipe.generation, recipe.task.max_length
    target = min(generation.max_target, longest // 2)
    return min(generation.max_source or longest, longest - target), target


def kept_parts(recipe: Recipe) -> list[Keep]:
    """What is kept of each part of a source that is too long."""
    return ["end" if role == HISTORY else recipe.generation.keep for role in recipe.generation.source]


class Generation(Task):
    """Generates text from text."""

    def resolve(self, settings: Any, records: Sequence[Record]) -> TaskSettings:
        """The unchanged settings, once every training record has a target."""
        for record in records:
            targets_of(record, settings)
        return super().resolve(settings, records)

    def encode(self, records: Sequence[Record], tokenizer: Tokenizer, recipe: Recipe) -> list[SourceTarget]:
        """One row per record, or per target; without a target if the record has none."""
        task, generation = recipe.task, recipe.generation
        texts = [[" ".join(texts_of(record, task, role)) for role in generation.source] for record in records]
        tokens = iter(tokenizer.encode_batch([text for parts in texts for text in parts]))
        targets = [targets_of(record, task) if has_target(record, task) else [] for record in records]
        answers = iter(tokenizer.encode_batch([text for several in targets for text in several]))
        for_source, for_target = room(recipe)
        keep = kept_parts(recipe)
        choosing = None
        if generation.chunk_by is not None:
            choosing = [number for number, role in enumerate(generation.source) if role in generation.chunk_by]
        copies = 1 + (learning_of(recipe) == "pseudo")
        specials = SOURCE_SPECIALS + len(format_of(recipe).starts)
        rows, cut = [], [0, 0]
        for number, record in enumerate(records):
            parts = [next(tokens) for _ in texts[number]]
            several = [next(answers) for _ in targets[number]]
            anchors, size = {}, sum(map(len, parts))
            if generation.keep == "chunk" and size + len(parts) - 1 > for_source - SOURCE_SPECIALS:
                anchors = _anchors(record, texts[number], tokenizer, recipe)
            kept = cut_texts(parts, for_source - SOURCE_SPECIALS, keep, choosing, anchors)
            source = np.concatenate([np.append(part, tokenizer.vocabulary.eos) for part in kept])[:-1].astype(np.int32)
            is_cut = sum(map(len, kept)) < size
            cut[0] += is_cut
            cut[1] += any(len(target) >= for_target for target in several)
            used = several if generation.targets == "all" else several[:1]
            shown: list[Int32s | None] = [target[: for_target - 1] for target in used]
            for target in shown or [None]:
                slots = len(source) + specials + copies * (1 + (0 if target is None else len(target)))
                rows.append(SourceTarget(record=number, source=source, target=target, slots=slots, cut=is_cut))
        if any(cut):
            sources = f"{cut[0]} of {len(records)} sources are longer than {for_source} tokens, special tokens included"
            why = "they were cut (generation.max_source and max_target, within task.max_length)"
            warnings.warn(f"{sources}, and {cut[1]} targets longer than {for_target}: {why}", stacklevel=2)
        return rows

    def lay_out(self, rows: Sequence[Any], vocabulary: Vocabulary, recipe: Recipe, keys: Bits | None) -> Examples:
        """Examples with the prediction target `target`."""
        learning, windows = learning_of(recipe), _windows(rows, vocabulary, keys)
        if learning == "next":
            examples = _next(windows, rows, vocabulary, recipe)
        elif learning == "masked" and keys is not None:
            examples = _masked(windows, vocabulary, recipe)
        else:
            examples = _pseudo(windows, vocabulary, recipe, drawn=keys is not None)
        (target,) = examples.targets.values()
        return dataclasses.replace(examples, targets={TARGET: without_unknown(target, vocabulary)})

    def reference(self, record: Record, settings: Any) -> list[str]:
        """The texts to compare a prediction with."""
        return reference(record, settings)

    def baseline(self, train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline:
        """The first sentence of the source; of several tasks the most common target of each."""
        if has_parts(recipe.task):
            return most_common(train, records)
        return Baseline("repeating the first sentence of the source", _first_sentences(records, recipe, 1))

    def rival(self, train: Sequence[Record], records: Sequence[Record], recipe: Recipe) -> Baseline | None:
        """LEAD-3 of the papers' tables of summaries; None if most sources have no more than three sentences."""
        three, four = (_first_sentences(records, recipe, count) for count in (3, 4))
        longer = sum(one != other for one, other in zip(three, four, strict=True))
        if has_parts(recipe.task) or 2 * longer <= len(records):
            return None
        return Baseline("repeating the first three sentences (LEAD-3)", three)


def _first_sentences(records: Sequence[Record], recipe: Recipe, count: int) -> list[str]:
    sources = [" ".join(texts_of(record, recipe.task, recipe.generation.source[0])).strip() for record in records]
    return [" ".join(sentences(source, count)) for source in sources]


def _anchors(record: Record, texts: Sequence[str], tokenizer: Tokenizer, recipe: Recipe) -> dict[int, tuple[int, int]]:
    """The tokens of each part of a source at which another part, an answer, is by its `answer_start`."""
    found = {}
    for answer, role in zip(texts, recipe.generation.source, strict=True):
        value = record.get(recipe.task, role)
        start = value.get("answer_start") if isinstance(value, Mapping) else None
        if not isinstance(start, int):
            continue
        for number, text in enumerate(texts):
            if answer and start >= 0 and text.startswith(answer, start):
                tokens = encode_passages([text], tokenizer)[0].covering(start, start + len(answer))
                found.update({} if tokens is None else {number: tokens})
    return found


def _windows(rows: Sequence[SourceTarget], vocabulary: Vocabulary, keys: Bits | None) -> Windows:
    """Windows "[SOS] source [EOS] target [EOS]" whose target is maskable, its [EOS] included."""
    sequences = []
    for row in rows:
        if row.target is None:
            raise UniclozeError("a record without a target cannot be used for training: give it one")
        sequences.append([row.source, row.target])
    drawn = np.zeros(len(rows), dtype=np.uint64) if keys is None else keys
    windows = windows_of(sequences, vocabulary, keys=drawn)
    return dataclasses.replace(windows, maskable=windows.segment_ids == 1)


def _pseudo(windows: Windows, vocabulary: Vocabulary, recipe: Recipe, *, drawn: bool) -> Examples:
    """The source as context, then the target tokens by step, then their pseudo masks by step."""
    generation = recipe.generation
    steps = (np.cumsum(windows.maskable, axis=1, dtype=np.int32) - 1) * windows.maskable - ~windows.maskable
    if drawn:
        if generation.any_order:
            steps = masking.shuffle_tokens(steps, windows.keys)
        steps = np.where(windows.maskable, steps // generation.block_size, np.int32(-1))
    corruption = unilmv2.ALL_MASKED
    if drawn:
        corruption = Corruption(mask_share=generation.mask_share, random_share=generation.random_share)
    pseudo = pseudo_id(recipe, vocabulary)
    ids = np.array(segments_of(recipe), dtype=np.int32)
    in_segments = dataclasses.replace(windows, segment_ids=ids[windows.segment_ids])
    examples = unilmv2.lay_out(in_segments, steps, vocabulary, corruption, predict=("par",), pseudo=pseudo, whole=False)
    if drawn and generation.target_noise > 0:
        _add_noise(examples, windows, steps, vocabulary, corruption, generation.target_noise)
    return examples


def _add_noise(
    examples: Examples, windows: Windows, steps: Int32s, vocabulary: Vocabulary, corruption: Corruption, share: float
) -> None:
    """Corrupt a share of the target's own tokens in place like masked tokens, with independent draws."""
    masked_tokens = MaskedTokens.of(steps)
    row, position = masked_tokens.row, masked_tokens.position
    slot = examples.mutual[row] + masked_tokens.rank
    keys = keyed.bits(windows.keys, keyed.Stream.NOISE_OF_TARGET, np.zeros(1, np.int64))
    own = windows.token_ids[row, position]
    rekeyed = dataclasses.replace(windows, keys=keys)
    noise, _ = unilmv2.corrupt(rekeyed, masked_tokens, own, vocabulary, corruption, pseudo=vocabulary.mask)
    noised = keyed.uniform(keyed.bits(windows.keys[row], keyed.Stream.NOISED_TARGET, position)) < share
    examples.input_ids[row[noised], slot[noised]] = noise[noised]


def _masked(windows: Windows, vocabulary: Vocabulary, recipe: Recipe) -> Examples:
    """Rows with a share of the target masked in place."""
    generation = recipe.generation
    rates = np.full(len(windows), generation.mask_rate)
    steps = masking.single_tokens(windows.maskable, windows.keys, rates=rates)
    corruption = Corruption(mask_share=generation.mask_share, random_share=generation.random_share)
    reading = Reading(visibility="prefix", segment_ids=segments_of(recipe))
    return masked.lay_out(windows, steps, vocabulary, corruption, reading)


def _next(windows: Windows, rows: Sequence[SourceTarget], vocabulary: Vocabulary, recipe: Recipe) -> Examples:
    """Rows in which each target slot predicts the next token, and the source's [EOS] the first."""
    settings = format_of(recipe)
    targets = windows.token_ids[windows.maskable]
    sources = np.concatenate([row.source for row in rows]).astype(np.int32)
    source = seq2seq.Ragged(sources, np.array([len(row.source) for row in rows]))
    target = seq2seq.Ragged(targets, np.count_nonzero(windows.maskable, axis=1))
    examples = seq2seq.lay_out(windows, source, target, vocabulary, settings, rates=np.ones(len(windows)))
    if not reads_left_to_right(recipe):
        return examples
    intervals = visibility.left_to_right_rows(examples.lengths, capacity=examples.input_ids.shape[1])
    width = recipe.objective.reading.local_width
    local = None if width is None else visibility.nearby(intervals, width)
    return dataclasses.replace(examples, intervals=intervals, local=local, mutual=np.zeros_like(examples.mutual))


TASKS = {
    "generation": Generation(
        purpose="Generates text from text: a summary, a question, an answer, a response, a translation.",
        settings=WritingSettings,
        roles=("source", "context", "history", "question", "answer", "target", "references"),
        answers=("target", "references"),
        token_targets=(TARGET,),
        compares=("texts", "squad", "coqa"),
    )
}

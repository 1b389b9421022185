"""Derives from a recipe how other libraries call a model: its inputs, and the arguments of `generate`."""

from __future__ import annotations

from typing import Any

from unicloze.decoding.abilities import find_generation_format, generation_format_of, read_as, repetition_guard
from unicloze.errors import UsageError
from unicloze.model.from_attention_mask import EncoderInputs, StepInputs
from unicloze.settings import Recipe
from unicloze.tasks import generation
from unicloze.text.vocabulary import Vocabulary
from unicloze.training.loading import LoadedModel


def encoder_inputs(recipe: Recipe) -> EncoderInputs:
    """How a model reads a text with nothing masked, as `embed` does; no segment lies beyond the end of its table."""
    reading, visibility = read_as(recipe), recipe.use.visibility
    if visibility not in ("bidirectional", "left_to_right") or recipe.model.kind != "transformer":
        raise UsageError(
            "only a Transformer that reads a text in both directions or from left to right can be exported "
            "(use.visibility, model.kind)"
        )
    last = max(0, recipe.model.num_segments - 1)
    first, second = (min(segment, last) for segment in reading.segments)
    return EncoderInputs(visibility=visibility, segment_ids=(first, second), local_width=reading.local_width)


def step_inputs(recipe: Recipe, vocabulary: Vocabulary) -> StepInputs | None:
    """How a model generates a target, see `unicloze.decoding.abilities`.

    None if it cannot, or if its rows hold more than source, target and the tokenizer's special tokens: a token that
    opens the target (MASS) or names the task (UL2).
    """
    layout = find_generation_format(recipe, vocabulary)
    if layout is None or layout.opening or len(layout.start) > 1:
        return None
    last = max(0, recipe.model.num_segments - 1)
    return StepInputs(
        predicts=layout.predicts,
        source="left_to_right" if layout.decoder_only else "bidirectional",
        segment_ids=(min(layout.source_segment, last), min(layout.target_segment, last)),
        pseudo=layout.pseudo,
        local_width=layout.local_width,
    )


def never_written(recipe: Recipe, vocabulary: Vocabulary) -> list[int]:
    """Tokens that a target never contains: all special ones except [EOS], and except sentinels if targets consist of them."""
    layout = find_generation_format(recipe, vocabulary)
    return sorted({*vocabulary.special.tolist()} - {vocabulary.eos} if layout is None else {*layout.never})


def generate_arguments(loaded: LoadedModel) -> dict[str, Any]:
    """Arguments of `generate` that reproduce `unicloze generate` as far as possible."""
    decoding = loaded.recipe.decoding
    found: dict[str, Any] = {"max_new_tokens": _longest_target(loaded)}
    if decoding.min_length:
        found["min_new_tokens"] = decoding.min_length
    if decoding.no_repeat_ngram:
        found["no_repeat_ngram_size"] = decoding.no_repeat_ngram
    if decoding.num_results > 1:
        found["num_return_sequences"] = decoding.num_results
    if decoding.sample:
        return found | {
            "do_sample": True,
            "temperature": decoding.temperature,
            "top_k": decoding.top_k or 0,
            "top_p": 1.0 if decoding.top_p is None else decoding.top_p,
        }
    if decoding.beams > 1:
        found |= {
            "num_beams": decoding.beams,
            "early_stopping": True if decoding.early_stop == "first" else "never",
            "length_penalty": decoding.length_penalty,
        }
    return found


def not_said(loaded: LoadedModel) -> list[str]:
    """How `generate` differs from the recipe's `decoding`, as sentences without a full stop."""
    decoding = loaded.recipe.decoding
    said = []
    if decoding.beams > 1 and decoding.length_penalty:
        alpha = f"{decoding.length_penalty:g}"
        said.append(
            f"`generate` ranks beams by log p / n^{alpha}, unicloze by log p / ((5 + n) / 6)^{alpha}: "
            "with short texts they may choose differently (`length_penalty=0.0` is the same in both)"
        )
    if decoding.sample:
        said.append("`generate` samples with torch's random numbers instead of `decoding.seed`: the texts differ")
    if decoding.no_repeat_ngram and decoding.may_repeat:
        said.append(
            "`generate` blocks every repeated n-gram, unicloze allows those with a token of "
            f"{', '.join(decoding.may_repeat)}"
        )
    if (guard := repetition_guard(loaded)) and not decoding.no_repeat_ngram:
        said.append(f"unicloze lets so small a model repeat no {guard} tokens (`no_repeat_ngram_size={guard}`)")
    if decoding.parallel is not None:
        said.append("`generate` writes one token at a time, unicloze `decoding.parallel` at once")
    return said


def longest_source(loaded: LoadedModel) -> int:
    """Largest source in tokens, special tokens included, that leaves room for a target."""
    most = loaded.model.max_positions - _longest_target(loaded)
    return min(most, generation.room(loaded.recipe)[0]) if loaded.recipe.task.kind else most


def goes_on(loaded: LoadedModel) -> bool:
    """Whether the model continues a text, which then has no final [EOS]."""
    return not generation_format_of(loaded.recipe, loaded.tokenizer.vocabulary).ends_source


def _longest_target(loaded: LoadedModel) -> int:
    """As in `unicloze generate`: without fine-tuned lengths, the target gets at most half of the positions."""
    longest = loaded.recipe.decoding.max_length
    return longest if loaded.recipe.task.kind else min(longest, loaded.model.max_positions // 2)

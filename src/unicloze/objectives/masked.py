"""Masked language models: BERT, RoBERTa, SpanBERT, ALBERT, ERNIE, ELECTRA and UniLM v1's four.

A row is the window with its masked positions corrupted; `ae` is predicted there. The models differ in what is masked
(`unicloze.objectives.masking`), which slots see which (`settings.visibility`), and what else is predicted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from unicloze import visibility
from unicloze.arrays import Int32s
from unicloze.errors import UsageError
from unicloze.example import Examples, Kind, Target
from unicloze.objectives import unilmv2
from unicloze.objectives.generation_format import GenerationFormat, layout
from unicloze.objectives.groups import Corruption, Directed, Masking, Pairs
from unicloze.objectives.masking import Rates, Steps, highest_rate, most_masked_by, rates_of
from unicloze.objectives.objective import Ability, Objective
from unicloze.objectives.row_builder import MaskedTokens, RowBuilder, in_turn, named_segments, with_pair_target
from unicloze.rules import Problem
from unicloze.settings import ObjectiveSettings, Reading, Recipe
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows

# A network samples the tokens at masked positions, so the objective only gives the slots and their original tokens;
# the model inserts its samples and compares (`unicloze.model.build`).


def with_replaced_target(examples: Examples, windows: Windows, settings: ObjectiveSettings) -> Examples:
    """Add the target `rtd`, if the settings name it, at every slot of the window that is not padding.

    Special tokens are included, as in the released code. Labels are the tokens of the window.

    Args:
        examples: Rows whose slots are the positions of the window.
        windows: The windows of the rows.
        settings: Settings with the target names.
    """
    if "rtd" not in settings.targets:
        return examples
    rows, window = windows.token_ids.shape
    position = np.arange(window, dtype=np.int32)
    target = Target(
        slots=np.tile(position, (rows, 1)),
        labels=windows.token_ids,
        weights=(position < windows.lengths[:, None]).astype(np.float32),
    )
    return dataclasses.replace(examples, targets={**examples.targets, "rtd": target})


@dataclass(frozen=True, kw_only=True)
class MaskedSettings(Masking, Corruption, Directed, Pairs):
    """Settings of masked language models."""

    name: str = "masked"

    known_targets = "ae", "nsp", "sop", "sbo", "rtd"

    def problems(self, recipe: Recipe) -> Iterator[Problem]:
        """Reject visibilities and targets whose requirements are not met."""
        yield from super().problems(recipe)
        if self.visibility == "prefix" and recipe.data.segments == 1:
            yield "objective.visibility", "the first segment is the prefix; without a second, set data.segments to 2"
        if self.visibility in ("left_to_right", "prefix") and {"nsp", "sop"} & {*self.targets}:
            yield (
                "objective.visibility",
                "'nsp' and 'sop' are predicted at the first slot, which does not see the second segment: set it to "
                "bidirectional or right_to_left, or leave the target out",
            )
        if {"rtd", "sbo"} <= {*self.targets}:
            yield (
                "objective.targets",
                "'rtd' shows samples in place of the masked tokens, often those that 'sbo' predicts: leave one out",
            )
        if "rtd" in self.targets and "ae" not in self.targets:
            yield (
                "objective.targets",
                "the target 'rtd' needs 'ae', which trains the generator of the replaced tokens",
            )


def masked(windows: Windows, vocabulary: Vocabulary, settings: MaskedSettings, rates: Rates | None = None) -> Examples:
    """Mask a block of windows; all draws are keyed by `windows.keys`.

    Args:
        windows: The text.
        vocabulary: Ids of the masks and candidates for random tokens.
        settings: What to mask, predict and show, and the visibility.
        rates: Mask rate of each row; default: `settings.mask_rate`. *Shape:* (rows,)
    """
    rates = rates_of(windows, settings, rates)
    steps = unilmv2.draw_steps(windows, settings, rates, vocabulary)
    most = most_masked_by(settings, windows.token_ids.shape[1], highest_rate(settings, rates))
    examples = lay_out(windows, steps, vocabulary, settings, settings.reading, most=most)
    targets = {name: target for name, target in examples.targets.items() if name in settings.targets}
    if "sbo" in settings.targets:
        targets["sbo"] = _boundary_target(examples.targets["ae"], examples.steps)
    examples = with_replaced_target(dataclasses.replace(examples, targets=targets), windows, settings)
    return with_pair_target(examples, windows, settings)


def cloze(windows: Windows, steps: Steps, vocabulary: Vocabulary, settings: MaskedSettings) -> Examples:
    """Rows that predict all masked tokens at once, with a mask at each, under the settings' visibility."""
    return lay_out(windows, steps, vocabulary, unilmv2.ALL_MASKED, settings.reading)


def causal(windows: Windows, vocabulary: Vocabulary, settings: MaskedSettings) -> Examples:
    """Rows that predict every text token from those left of it, as a left-to-right model does (UniLM v1).

    The unchanged window comes first; each token sees itself and those left of it. After it comes one mask per text token,
    with the token's position and segment, which sees itself and what is left of the token. One row thus replaces as many
    rows with one mask each.
    """
    windows, masked = named_segments(windows, settings.reading), MaskedTokens.of(in_turn(windows))
    most = int(masked.counts.max(initial=0))
    capacity = windows.token_ids.shape[1] + most
    answers = windows.token_ids[masked.row, masked.position]
    slot = windows.lengths[masked.row] + masked.rank
    rows = RowBuilder(windows, masked, vocabulary, capacity)
    rows.put_windows()
    rows.put_masked(slot, np.full_like(answers, vocabulary.mask), Kind.PSEUDO)
    return rows.examples(
        visibility.with_masks_rows(windows.lengths, masked.row, masked.position, capacity=capacity),
        lengths=windows.lengths + masked.counts,
        mutual=np.zeros_like(windows.lengths),
        targets={"ae": masked.target(slot, answers, max(1, most))},
    )


def lay_out(
    windows: Windows, steps: Steps, vocabulary: Vocabulary, corruption: Corruption, reading: Reading, *, most: int = 1
) -> Examples:
    """Rows with the target `ae` for given steps, ordered by step, then position; see `unilmv2.lay_out`."""
    of_text, mask = windows.segment_ids, vocabulary.mask
    windows = named_segments(windows, reading)
    examples = unilmv2.lay_out(windows, steps, vocabulary, corruption, predict=("ae",), pseudo=mask, most=most)
    if reading.visibility == "bidirectional":
        return examples
    capacity = examples.input_ids.shape[1]
    if reading.visibility == "right_to_left":
        intervals = visibility.right_to_left_rows(windows.lengths, capacity=capacity)
    else:
        real = np.arange(windows.segment_ids.shape[1]) < windows.lengths[:, None]
        first = ((of_text == 0) & real).sum(axis=1)
        source = first if reading.visibility == "prefix" else np.zeros_like(first)
        intervals = visibility.prefix_rows(source, windows.lengths, capacity=capacity)
    return dataclasses.replace(examples, intervals=intervals, mutual=np.zeros_like(windows.lengths))


def _boundary_target(ae: Target, steps: Int32s) -> Target:
    """SpanBERT's span boundary objective: predict tokens from the unmasked slots left and right of them (Section 3.2).

    Spans that touch are one. A window begins with [SOS] and ends with [EOS], so these slots always exist.

    Args:
        ae: The masked tokens by step, then position.
        steps: Step of each slot. *Shape:* (rows, slots)
    """
    real = ae.weights > 0
    slot, row = ae.slots[real], np.repeat(np.arange(len(real)), np.count_nonzero(real, axis=1))
    masked, column = steps >= 0, np.arange(steps.shape[1])
    before = np.maximum.accumulate(np.where(masked, 0, column), axis=1)
    after = np.minimum.accumulate(np.where(masked, steps.shape[1], column)[:, ::-1], axis=1)[:, ::-1]
    left, right = before[row, slot], after[row, slot]
    slots, places = np.zeros((*real.shape, 2), dtype=np.int32), np.zeros(real.shape, dtype=np.int32)
    slots[real] = np.stack([left, right], axis=1)
    places[real] = slot - left
    return Target(slots=slots, labels=ae.labels, weights=ae.weights, places=places)


def _defines(settings: MaskedSettings) -> set[Ability]:
    if (
        "ae" not in settings.targets or "rtd" in settings.targets
    ):  # in ELECTRA, `ae` trains the generator, which is not used afterwards
        return set()
    by_direction: Mapping[str, set[Ability]] = {"bidirectional": {"cloze"}, "left_to_right": {"causal"}}
    return by_direction.get(settings.visibility, set())


def _generates(settings: MaskedSettings, vocabulary: Vocabulary) -> GenerationFormat | None:
    reads = settings.visibility
    if "ae" not in settings.targets or "rtd" in settings.targets or reads not in ("prefix", "left_to_right"):
        return None
    alone = reads == "left_to_right"
    return layout(settings, vocabulary, predicts="pseudo", pseudo=vocabulary.mask, decoder_only=alone)


@dataclass(frozen=True, kw_only=True)
class UntrainedSettings(Pairs):
    """Settings of an imported encoder; its targets are the heads it came with, possibly none."""

    name: str = "none"

    known_targets = "nsp", "sop", "rtd"
    trains = False


def nothing(*_: object) -> Examples:
    """Raise an error, since this objective makes no rows."""
    raise UsageError(
        "objective none, that of an imported encoder, cannot be trained: use a recipe with another objective, and give the "
        "encoder as training.initialize_from"
    )


OBJECTIVES: Mapping[str, Objective[Any]] = {
    "masked": Objective(
        settings=MaskedSettings,
        make=masked,
        cloze=cloze,
        causal=causal,
        defines=_defines,
        causal_masks=True,
        generates=_generates,
    ),
    "none": Objective(settings=UntrainedSettings, make=nothing),
}

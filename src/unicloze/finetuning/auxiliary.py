"""Trains the model's pre-training objective on the texts of a task's rows, together with the task.

This reduces forgetting: UniLM v1 fine-tunes question answering on generated questions together with masked language
modelling (Section 3.3), GPT fine-tunes its classifiers together with its language model (Section 3.2 there). Every step
has the rows of the task, and the same rows as laid out by the objective; if both are identical, as for a causal model, one
forward pass serves both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from unicloze import keyed
from unicloze.errors import UsageError, option_of
from unicloze.example import Examples, Kind
from unicloze.mixtures import parts, positions
from unicloze.objectives import make_examples
from unicloze.objectives.groups import Pairs
from unicloze.settings import ObjectiveSettings, Recipe
from unicloze.text.vocabulary import Vocabulary
from unicloze.text.windows import Windows
from unicloze.training.batches import MicroBatch

SEQUENCE = 2**20 + 9
"""Stream of the keys of sequences packed into one row."""
OF_A_ROW = "ae", "par", "lm", "diffusion", "sbo"
"""Targets that a single row has: neither segment-pair relations nor tokens replaced by a generator."""


def auxiliary_objective(recipe: Recipe) -> ObjectiveSettings:
    """The part of the objective that predicts the auxiliary targets with the visibility of the task's rows.

    In a mixture this is the first such part, such as the bidirectional one of UniLM v1's four.
    """
    wanted, reads = recipe.finetuning.auxiliary, recipe.use.visibility
    known: dict[str, None] = {}
    for part in parts(recipe.objective):
        settings = part.settings
        if settings.reading.visibility != reads:
            continue
        known |= dict.fromkeys(name for name in settings.targets if name in OF_A_ROW)
        if not set(wanted) <= known.keys() & set(settings.targets):
            continue
        longest = positions(settings, recipe.task.max_length)
        if recipe.model.max_positions is not None and longest > recipe.model.max_positions:
            raise UsageError(
                f"finetuning.auxiliary needs {longest} positions for rows of {recipe.task.max_length} tokens, but the "
                f"model has {recipe.model.max_positions}: lower {option_of('task.max_length')}"
            )
        targets = [name for name in settings.targets if name in wanted]
        alone = dataclasses.replace(settings, targets=targets)
        return dataclasses.replace(alone, pairs="contiguous") if isinstance(alone, Pairs) else alone
    cure = f"train on the task alone with {option_of('finetuning.auxiliary')} '{{}}'"
    raise UsageError(
        f"finetuning.auxiliary names {', '.join(wanted)}, but the model's objective with {reads} visibility has "
        f"{' and '.join(known) or 'no target that a single row has'}: {cure}, or start from a model that "
        "was pre-trained for it"
    )


def with_auxiliary(
    batch: MicroBatch,
    objective: ObjectiveSettings,
    weights: Mapping[str, float],
    vocabulary: Vocabulary,
    keys: keyed.Bits,
) -> list[MicroBatch]:
    """A micro-batch of a task, and its rows as an objective lays them out."""
    examples = make_examples(_windows(batch.examples, vocabulary, keys), vocabulary, objective)
    if not _alike(batch.examples, examples):
        buckets = batch.buckets if len(examples) == len(batch.examples) else ()
        return [batch, MicroBatch(examples, None, weights, batch.place, buckets, repeats=True, part=1)]
    both = dataclasses.replace(batch.examples, targets={**batch.examples.targets, **examples.targets})
    merged = dataclasses.replace(batch, examples=both, coefficients={**batch.coefficients, **weights})
    return [merged, MicroBatch(Examples.none(), None, part=1)]


def _windows(examples: Examples, vocabulary: Vocabulary, keys: keyed.Bits) -> Windows:
    """The sequences of a task's rows as windows of text."""
    real = np.arange(examples.input_ids.shape[1]) < examples.lengths[:, None]
    row, slot = np.nonzero(real & (examples.position_ids == 0))  # where each sequence begins
    following = np.append(slot[1:], 0)
    ends = np.where(np.append(row[1:], -1) == row, following, examples.lengths[row])
    lengths = (ends - slot).astype(np.int32)
    inner = np.arange(lengths.max(initial=1))
    taken = inner < lengths[:, None]
    at = row[:, None], np.minimum(slot[:, None] + inner, examples.input_ids.shape[1] - 1)
    plain = (examples.kinds[at] == Kind.CONTEXT) & (examples.position_ids[at] == inner)
    if lengths.sum() != examples.lengths.sum() or not plain[taken].all():
        raise UsageError("finetuning.auxiliary needs rows of plain text only, unlike those of this task: leave it out")
    token_ids = np.where(taken, examples.input_ids[at], vocabulary.pad).astype(np.int32)
    first = np.searchsorted(row, np.arange(len(examples)))
    return Windows(
        token_ids=token_ids,
        segment_ids=np.where(taken, examples.segment_ids[at], 0).astype(np.int32),
        lengths=lengths,
        maskable=taken & ~np.isin(token_ids, vocabulary.special),
        keys=keyed.bits(keys[row], SEQUENCE, np.arange(len(row)) - first[row]) if len(row) > len(keys) else keys,
        source=np.zeros(len(row), dtype=np.int32),
        index=np.arange(len(row), dtype=np.int64),
    )


def _alike(one: Examples, other: Examples) -> bool:
    """Whether two blocks have the same slots with the same visibility, ignoring padding."""
    if one.local is not None or other.local is not None or not np.array_equal(one.lengths, other.lengths):
        return False
    real = np.arange(one.lengths.max(initial=0)) < one.lengths[:, None]
    columns = ("input_ids", "position_ids", "segment_ids", "intervals")
    return all(
        np.array_equal(*(getattr(examples, name)[:, : real.shape[1]][real] for examples in (one, other)))
        for name in columns
    )

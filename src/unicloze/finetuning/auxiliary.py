"""The model's own pre-training objective on the texts of a task's rows, learned beside the task.

So a model forgets less of what it was pre-trained for: UniLM v1 fine-tunes question answering on generated questions with its
masked language model (Section 3.3), GPT its classifiers with its language model (Section 3.2 there). Every step has the rows
of the task, and the same rows as the objective makes them; where both are the same rows, as those of a causal model, one
pass learns both.
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
from unicloze.text.tokenizers import Vocabulary
from unicloze.text.windows import Windows
from unicloze.training.batches import MicroBatch

OF_A_ROW = "ae", "par", "lm", "diffusion", "sbo"
"""Targets that a row has by itself: neither how two segments relate nor what a generator replaced."""


def auxiliary_objective(recipe: Recipe) -> ObjectiveSettings:
    """The part of the objective that predicts the auxiliary targets under the visibility a task's rows have.

    The first such part of a mixture: of UniLM v1's four the bidirectional one.

    Raises:
        UsageError: There is none, or its rows are longer than the model has positions.
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
                f"finetuning.auxiliary makes rows of {longest} positions out of {recipe.task.max_length} tokens, and the "
                f"model has {recipe.model.max_positions}: lower {option_of('task.max_length')}"
            )
        targets = [name for name in settings.targets if name in wanted]
        alone = dataclasses.replace(settings, targets=targets)
        return dataclasses.replace(alone, pairs="contiguous") if isinstance(alone, Pairs) else alone
    cure = f"learn the task alone with {option_of('finetuning.auxiliary')} '{{}}'"
    raise UsageError(
        f"finetuning.auxiliary names {', '.join(wanted)}; the model's objective, read {reads}, has "
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
    """A micro-batch of a task, and its rows as an objective makes them.

    Args:
        batch: Of the task.
        objective: See `auxiliary_objective`.
        weights: Factor of the loss of each of its targets.
        vocabulary: Ids of the masks and of random tokens.
        keys: Key of each row's draws. *Shape:* (rows,)

    Returns:
        Two micro-batches, or one with the targets of both where their rows are the same.

    Raises:
        UsageError: The rows are no plain texts.
    """
    examples = make_examples(_windows(batch.examples, vocabulary, keys), vocabulary, objective)
    if not _alike(batch.examples, examples):
        return [batch, MicroBatch(examples, None, weights, batch.place, batch.blocks, repeats=True)]
    both = dataclasses.replace(batch.examples, targets={**batch.examples.targets, **examples.targets})
    return [dataclasses.replace(batch, examples=both, coefficients={**batch.coefficients, **weights})]


def _windows(examples: Examples, vocabulary: Vocabulary, keys: keyed.Bits) -> Windows:
    """The rows of a task as windows of text."""
    slot = np.arange(examples.input_ids.shape[1])
    real = slot < examples.lengths[:, None]
    plain = (examples.kinds == Kind.CONTEXT) & (examples.position_ids == slot)
    if not plain[real].all():
        raise UsageError("finetuning.auxiliary learns plain texts, and the rows of this task hold more: leave it out")
    return Windows(
        token_ids=examples.input_ids,
        segment_ids=np.where(real, examples.segment_ids, 0).astype(np.int32),
        lengths=examples.lengths,
        maskable=real & ~np.isin(examples.input_ids, vocabulary.special),
        keys=keys,
        source=np.zeros(len(examples), dtype=np.int32),
        index=np.arange(len(examples), dtype=np.int64),
    )


def _alike(one: Examples, other: Examples) -> bool:
    """Whether two blocks hold the same slots that read the same slots; what stands in padding does not count."""
    if one.local is not None or other.local is not None or not np.array_equal(one.lengths, other.lengths):
        return False
    real = np.arange(one.lengths.max(initial=0)) < one.lengths[:, None]
    columns = ("input_ids", "position_ids", "segment_ids", "intervals")
    return all(
        np.array_equal(*(getattr(examples, name)[:, : real.shape[1]][real] for examples in (one, other)))
        for name in columns
    )

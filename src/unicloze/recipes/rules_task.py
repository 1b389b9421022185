"""What the settings of a task must be."""

from __future__ import annotations

import math
from collections.abc import Iterator

from unicloze.settings import GenerationSettings, Recipe

TASK_KINDS = ("classification", "regression", "choice", "tagging", "extraction", "conversation", "generation")
"""Keys of `unicloze.tasks.TASKS`, which takes torch to import."""

OF_ONE_SLOT = {
    "choice": "a choice is scored",
    "extraction": "that there is no answer is scored",
    "conversation": "the kind of an answer is predicted",
}
"""Kinds of tasks that pool no slots, and what a single one is for."""

SHORTEST_ROW = 8
"""Special tokens and some text."""
SHORTEST_SOURCE = 4
"""The same of a source."""


def task_problems(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Keys of the task and of fine-tuning with a value that cannot work, and what it must be."""
    task, finetuning = recipe.task, recipe.finetuning
    if not task.kind:
        return
    if task.kind not in TASK_KINDS:
        yield "task.kind", f"known tasks: {', '.join(TASK_KINDS)}"
    if not task.metrics:
        yield "task.metrics", "name at least one metric, which chooses the best checkpoint"
    if task.max_length < SHORTEST_ROW:
        yield "task.max_length", f"the special tokens and some text need {SHORTEST_ROW} or more"
    if task.labels is not None and len(set(task.labels)) != len(task.labels):
        yield "task.labels", "name each class once"
    if task.both_orders and task.pooling is None:
        yield "task.pooling", "what stands for each of both orders is summed: set it to first, last or mean"
    if task.kind in OF_ONE_SLOT and task.pooling == "mean":
        yield "task.pooling", f"{OF_ONE_SLOT[task.kind]} by one slot: set it to first or last"
    if task.head_dropout is not None and not 0 <= task.head_dropout < 1:
        yield "task.head_dropout", "it must be at least 0 and below 1"
    for name in ("max_question", "stride", "max_answer", "n_best"):
        if getattr(task, name) < 1:
            yield f"task.{name}", "it must be 1 or more"
    if finetuning.epochs != "auto" and not 0 < finetuning.epochs < math.inf:
        yield "finetuning.epochs", "it must be above 0 and finite"
    if not 0 <= finetuning.warmup_share < 1:
        yield "finetuning.warmup_share", "it must be at least 0 and below 1"
    if not 0 < finetuning.evaluations < math.inf:
        yield "finetuning.evaluations", "it must be above 0 and finite"
    if task.evaluate_records is not None and task.evaluate_records < 1:
        yield "task.evaluate_records", "measure one record or more, or leave it out for all"
    if task.train_records is not None and task.train_records < 1:
        yield "task.train_records", "learn from one record or more, or leave it out for all"
    if task.kind == "generation":
        yield from _generation_problems(recipe.generation)
    if finetuning.patience is not None and finetuning.patience < 1:
        yield "finetuning.patience", "wait for one evaluation or more, or leave it out"
    if not all(0 < weight < math.inf for weight in finetuning.auxiliary.values()):
        yield "finetuning.auxiliary", "each factor must be above 0 and finite"
    if not 0 < finetuning.layer_decay <= 1:
        yield "finetuning.layer_decay", "it must be above 0 and at most 1"
    if finetuning.unfreeze_epochs is not None and not 0 < finetuning.unfreeze_epochs < math.inf:
        yield "finetuning.unfreeze_epochs", "it must be above 0 and finite, or left out"


def _generation_problems(generation: GenerationSettings) -> Iterator[tuple[str, str]]:
    if not generation.source:
        yield "generation.source", "name at least one role that the source is made of"
    for role in generation.chunk_by or []:
        if role not in generation.source:
            yield "generation.chunk_by", f"'{role}' is no part of the source, which has {', '.join(generation.source)}"
    if generation.max_target < 2:
        yield "generation.max_target", "a token and [EOS] need 2 or more"
    if generation.max_source is not None and generation.max_source < SHORTEST_SOURCE:
        yield "generation.max_source", f"[SOS], some text and [EOS] need {SHORTEST_SOURCE} or more"
    for name in ("mask_rate", "mask_share", "random_share", "target_noise"):
        if not 0 <= getattr(generation, name) <= 1:
            yield f"generation.{name}", "it must lie between 0 and 1"
    if generation.mask_share + generation.random_share > 1:
        yield "generation.random_share", "with generation.mask_share it must be at most 1"
    if generation.block_size < 1:
        yield "generation.block_size", "predict one token or more in a step"
    if generation.segment_ids is not None and len(generation.segment_ids) not in (1, 2):
        yield "generation.segment_ids", "give one for source and target each"

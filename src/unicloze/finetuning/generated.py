"""Generates predictions, and computes the loss of the reference targets."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import torch

from unicloze.decoding.abilities import generation_format_of
from unicloze.decoding.generate import Part, check_settings, generate_parts, with_token_ids
from unicloze.decoding.steppers import check_generates, positions_of
from unicloze.errors import UsageError
from unicloze.evaluation.metrics.result import MetricResult
from unicloze.example import collate
from unicloze.finetuning.data import TaskData, buckets_by_length
from unicloze.finetuning.task_model import SLOTS_AT_ONCE, TaskModel
from unicloze.records.record import Record
from unicloze.settings import Recipe
from unicloze.tasks import TASKS, generation
from unicloze.tasks.conversation import turn_of
from unicloze.tasks.several import part_of
from unicloze.tasks.task import Prediction
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.tree import share


def ready_to_generate(recipe: Recipe, tokenizer: Tokenizer) -> Recipe:
    """The recipe of a generation task, with `decoding.max_length` limited to the positions of its model."""
    check_generates(recipe.model)
    longest = min(recipe.decoding.max_length, generation.room(recipe)[1])
    decoding = dataclasses.replace(recipe.decoding, max_length=longest)
    check_settings(decoding, generation_format_of(recipe, tokenizer.vocabulary))
    return dataclasses.replace(recipe, decoding=decoding)


def generated(
    model: TaskModel, data: TaskData, *, first: int = 0, progress: bool = False, draws: Sequence[int] | None = None
) -> Iterator[Part]:
    """Generate for each record; see `generate_parts`."""
    tokenizer, decoding = model.tokenizer, model.recipe.decoding
    sources = {row.record: row.source for row in data.rows}  # a record with several targets has one row for each
    layout = with_token_ids(generation_format_of(model.recipe, tokenizer.vocabulary), decoding, tokenizer)
    longest, positions = (
        max((len(layout.row(source)) for source in sources.values()), default=0),
        positions_of(model.model),
    )
    if longest > layout.room(positions, decoding.max_length):
        raise UsageError(
            f"decoding.max_length is {decoding.max_length}, but with a source of {longest} tokens the model has positions "
            f"for {positions - len(layout.opening) - (0 if layout.restarts else longest)}: give no more"
        )
    tokens = list(sources.values())
    return generate_parts(model.model, tokens, decoding, layout, first=first, progress=progress, draws=draws)


def predictions_of(
    parts: Iterable[Part], records: Sequence[Record], recipe: Recipe, tokenizer: Tokenizer
) -> Iterator[list[Prediction]]:
    """The predictions for the next records, after every few batches."""
    left = iter(records)
    for part in parts:
        if part.results:
            yield [
                prediction_of(record, recipe, [(tokenizer.decode(one.tokens), one.score) for one in hypotheses])
                for hypotheses, record in zip(part.results, left, strict=False)
            ]


def prediction_of(record: Record, recipe: Recipe, texts: Sequence[tuple[str, float]]) -> Prediction:
    """The best text generated for a record; if there are several, also all candidates with their scores.

    For a CoQA turn it includes story and turn number, as in the official file; in a task of `task.parts` with classes or
    numbers, `answer` is the one that the text stands for.
    """
    prediction: Prediction = {"id": record.id, "prediction": texts[0][0], **turn_of(record, recipe.task)}
    part = part_of(record, recipe.task)
    if part is not None and (part.step is not None or part.classes is not None):
        prediction["answer"] = part.answer_of(texts[0][0], compares="labels" if part.step is None else "numbers")
    if len(texts) > 1:
        prediction["candidates"] = [{"text": text, "score": round(score, 6)} for text, score in texts]
    return prediction


def target_loss(model: TaskModel, data: TaskData) -> MetricResult:
    """Mean loss per token of the reference targets, each token predicted from the reference tokens before it."""
    task, own = TASKS[model.recipe.task.kind], []
    world, blocks = model.compute.world, list(buckets_by_length(data.rows, SLOTS_AT_ONCE))
    model.model.eval()
    with torch.no_grad():
        for number in share(world.rank, world.size, len(blocks)):
            rows = [data.rows[row] for row in blocks[number]]
            examples = task.lay_out(rows, model.tokenizer.vocabulary, model.recipe, None)
            with model.compute.autocast():
                losses = model.model(collate(examples, device=model.compute.device))
            totals = sum(float(loss.total) for loss in losses.values())
            own.append((totals, sum(float(loss.weight) for loss in losses.values())))
    total = tokens = 0.0
    for cost, weight in itertools.chain(*world.gather(own)):
        total, tokens = total + cost, tokens + weight
    mean = total / max(tokens, 1.0)
    values = {"loss": mean, "perplexity": math.exp(min(mean, 700.0))}
    return MetricResult(
        metric="loss", values=values, items=len(data.rows), units={"loss": "nats per token", "perplexity": ""}
    )

"""Texts for records, by any model that can generate: fine-tuned for it, or as it was pre-trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unicloze.decoding.generate import generate, stream, stream_tokens, with_token_ids
from unicloze.decoding.layout import layout_of
from unicloze.finetuning.data import encoded
from unicloze.finetuning.generate import generated, prediction_of
from unicloze.finetuning.predict import load_task_model
from unicloze.tasks.records import Record
from unicloze.tasks.task import Prediction
from unicloze.training.models import LoadedModel


def generate_for_records(model: LoadedModel, records: Sequence[Record], *, progress: bool = False) -> list[Prediction]:
    """The text that a trained model generates for each record, by the settings of its recipe's `decoding`.

    Args:
        model: Fine-tuned to generate, or pre-trained to turn one text into another or to go on with one.
        records: Hold what the source is made of (`generation.source`).
        progress: Show progress on stderr.

    Raises:
        UsageError: The model cannot generate, or the settings contradict it.
        UniclozeError: A record lacks a part of its source; the message names its line.
    """
    recipe = model.recipe
    layout = layout_of(recipe, model.tokenizer.vocabulary)
    if recipe.task.kind:
        return generated(
            load_task_model(model), encoded(records, recipe, model.tokenizer, answers=False), progress=progress
        )
    sources = [_prompt(record, model) for record in records]
    found = generate(model, sources, recipe.decoding, layout=layout, progress=progress)
    return [
        prediction_of(record, [(one.text, one.score) for one in each.candidates])
        for record, each in zip(records, found, strict=True)
    ]


def stream_for_record(model: LoadedModel, record: Record) -> Iterator[str]:
    """The text for one record piece by piece, as soon as each is settled; see `generate_for_records`."""
    recipe = model.recipe
    layout = layout_of(recipe, model.tokenizer.vocabulary)
    if not recipe.task.kind:
        return stream(model, _prompt(record, model), recipe.decoding, layout=layout)
    row = encoded([record], recipe, model.tokenizer, answers=False).rows[0]
    return stream_tokens(model, row.source, recipe.decoding, with_token_ids(layout, recipe.decoding, model.tokenizer))


def _prompt(record: Record, model: LoadedModel) -> str:
    return record.text(model.recipe.task, model.recipe.generation.source[0])

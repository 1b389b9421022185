"""Generates texts for records with any fine-tuned or pre-trained model that can generate."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from unicloze.decoding.abilities import generation_format_of, place_of
from unicloze.decoding.generate import Part, generate_parts, ready, stream_text
from unicloze.errors import UsageError
from unicloze.files import digest
from unicloze.finetuning.checks import model_fingerprint
from unicloze.finetuning.data import encoded, records_fingerprint
from unicloze.finetuning.generated import generated, predictions_of
from unicloze.finetuning.partial_file import PartialFile
from unicloze.finetuning.task_model import load_task_model
from unicloze.records.record import Record
from unicloze.tasks.task import Prediction
from unicloze.training.loading import LoadedModel
from unicloze.version import __version__


def generate_for_records(
    model: LoadedModel, records: Sequence[Record], *, first: int = 0, progress: bool = False
) -> Iterator[list[Prediction]]:
    """Texts that a trained model generates for records, with the `decoding` settings of its recipe."""
    parts = parts_for_records(model, records, first=first, progress=progress)
    return predictions_of(parts, records[first:], model.recipe, model.tokenizer)


def stream_for_record(model: LoadedModel, record: Record) -> Iterator[str]:
    """The text for one record, piece by piece as each becomes final; see `generate_for_records`."""
    several = model.recipe.decoding.num_results
    if several > 1:
        raise UsageError(f"num_results is {several}, but only one text can be streamed: set it to 1, or do not stream")
    return stream_text(parts_for_records(model, [record]), model.tokenizer)


def parts_for_records(
    model: LoadedModel,
    records: Sequence[Record],
    *,
    first: int = 0,
    progress: bool = False,
    draws: Sequence[int] | None = None,
) -> Iterator[Part]:
    """What each step generates for records; see `generate_for_records`."""
    recipe = model.recipe
    if recipe.task.kind:
        # Refuses other tasks before their records are read.
        generation_format_of(recipe, model.tokenizer.vocabulary, place_of(model))
        data = encoded(records, recipe, model.tokenizer, answers=False)
        return generated(load_task_model(model), data, first=first, progress=progress, draws=draws)
    prompts = [record.text(recipe.task, recipe.generation.source[0]) for record in records]
    layout, tokens = ready(model, prompts, recipe.decoding)
    return generate_parts(model.model, tokens, recipe.decoding, layout, first=first, progress=progress, draws=draws)


def as_text(predictions: Sequence[Prediction]) -> str:
    """The text of a single prediction; if it has several candidates, each with its score."""
    (prediction,) = predictions
    several = prediction.get("candidates", [])
    return "\n".join(f"{each['score']:9.3f}  {each['text']}" for each in several) or str(prediction["prediction"])


def with_field(records: Iterable[Record], predictions: Sequence[Prediction], into: str | None) -> list[Prediction]:
    """The predictions; with `into`, the records instead, each with its prediction in that field."""
    if into is None:
        return list(predictions)
    return [
        {**record.fields, into: prediction["prediction"]}
        for prediction, record in zip(predictions, records, strict=False)
    ]


def generate_into(
    path: Path, model: LoadedModel, records: Sequence[Record], into: str | None, *, progress: bool = False
) -> list[Prediction]:
    """Generate texts for records into a file with one JSON object per line, written as they come.

    An interrupted call resumes if model, settings and records are the same; see `PartialFile`.
    """
    settings = model.recipe.to_dict()
    settings["decoding"].pop("batch_size")  # does not affect the texts
    settings |= {"into": into, "device": model.compute.device.type, "version": __version__}
    begun_with = {
        "model": model_fingerprint(model),
        "setting": digest(settings),
        "file of records": records_fingerprint(records),
    }

    def fits(number: int, line: Prediction) -> bool:
        record = records[number]
        if into is None:
            return line.get("id") == record.id
        expected = {**record.fields, into: line.get(into)}
        return json.dumps(line) == json.dumps(expected)  # as text, since NaN differs from itself

    with PartialFile(path, len(records), begun_with, fits) as part:
        for made in generate_for_records(model, records, first=len(part.lines), progress=progress):
            part.append(with_field(records[len(part.lines) :], made, into))
    return part.lines

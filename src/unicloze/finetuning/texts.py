"""Texts for records, by any model that can generate: fine-tuned for it, or as it was pre-trained."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from unicloze.decoding.generate import Generation, generate, stream, stream_tokens, with_token_ids
from unicloze.decoding.layout import layout_of
from unicloze.decoding.uses import place_of
from unicloze.digest import digest
from unicloze.finetuning.checks import model_fingerprint
from unicloze.finetuning.data import encoded, records_fingerprint
from unicloze.finetuning.generate import OnPart, generated, prediction_of
from unicloze.finetuning.part_file import PartFile
from unicloze.finetuning.predict import load_task_model
from unicloze.tasks.records import Record
from unicloze.tasks.task import Prediction
from unicloze.training.models import LoadedModel
from unicloze.version import __version__


def generate_for_records(
    model: LoadedModel,
    records: Sequence[Record],
    *,
    first: int = 0,
    on_part: OnPart | None = None,
    progress: bool = False,
) -> list[Prediction]:
    """The text that a trained model generates for each record, by the settings of its recipe's `decoding`.

    Args:
        model: Fine-tuned to generate, or pre-trained to turn one text into another or to go on with one.
        records: Hold what the source is made of (`generation.source`).
        first: Number of the first record to generate for; those before it are done.
        on_part: Is told, after every few batches, the number of a record and the predictions for it and those behind it.
        progress: Show progress on stderr.

    Raises:
        UsageError: The model cannot generate, or the settings contradict it.
        UniclozeError: A record lacks a part of its source; the message names its line.
    """
    recipe = model.recipe
    layout = layout_of(recipe, model.tokenizer.vocabulary, place_of(model))
    if recipe.task.kind:
        data = encoded(records, recipe, model.tokenizer, answers=False)
        return generated(load_task_model(model), data, first=first, on_part=on_part, progress=progress)
    sources = [_prompt(record, model) for record in records]

    def predictions(begin: int, found: list[Generation]) -> list[Prediction]:
        return [
            prediction_of(record, recipe, [(one.text, one.score) for one in each.candidates])
            for record, each in zip(records[begin : begin + len(found)], found, strict=True)
        ]

    told = None if on_part is None else lambda begin, found: on_part(begin, predictions(begin, found))
    all_found = generate(model, sources, recipe.decoding, layout=layout, first=first, on_part=told, progress=progress)
    return predictions(first, all_found)


def as_text(predictions: Sequence[Prediction]) -> str:
    """The text of the only prediction; if it has several candidates, each with its score."""
    (prediction,) = predictions
    several = prediction.get("candidates", [])
    return "\n".join(f"{each['score']:9.3f}  {each['text']}" for each in several) or str(prediction["prediction"])


def with_field(records: Sequence[Record], predictions: Sequence[Prediction], into: str | None) -> list[Prediction]:
    """The predictions, or the records with what is predicted in a field."""
    if into is None:
        return list(predictions)
    return [
        {**record.fields, into: prediction["prediction"]}
        for record, prediction in zip(records, predictions, strict=True)
    ]


def generate_into(
    path: Path, model: LoadedModel, records: Sequence[Record], into: str | None, *, progress: bool = False
) -> list[Prediction]:
    """What `generate_for_records` gives, as `with_field` puts it, a JSON object a line in a file that is written on the way.

    What an interrupted call has left, from the same model, settings and records, is not generated again; see `PartFile`.

    Raises:
        UsageError: As `generate_for_records`.
        UniclozeError: As `generate_for_records`, or another process writes the file.
        OSError: The file cannot be written.
    """
    settings = model.recipe.to_dict()
    settings["decoding"].pop("batch_size")  # nothing that is generated depends on it
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
        return json.dumps(line) == json.dumps(expected)  # as text NaN equals itself

    with PartFile(path, len(records), begun_with, fits) as part:

        def append(begin: int, made: list[Prediction]) -> None:
            part.append(with_field(records[begin : begin + len(made)], made, into))

        generate_for_records(model, records, first=len(part.lines), on_part=append, progress=progress)
    return part.lines


def stream_for_record(model: LoadedModel, record: Record) -> Iterator[str]:
    """The text for one record piece by piece, as soon as each is settled; see `generate_for_records`."""
    recipe = model.recipe
    layout = layout_of(recipe, model.tokenizer.vocabulary, place_of(model))
    if not recipe.task.kind:
        return stream(model, _prompt(record, model), recipe.decoding, layout=layout)
    row = encoded([record], recipe, model.tokenizer, answers=False).rows[0]
    return stream_tokens(model, row.source, recipe.decoding, with_token_ids(layout, recipe.decoding, model.tokenizer))


def _prompt(record: Record, model: LoadedModel) -> str:
    return record.text(model.recipe.task, model.recipe.generation.source[0])

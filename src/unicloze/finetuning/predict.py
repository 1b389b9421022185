"""Predicts the records of a task and writes the predictions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from unicloze.decoding.inputs import check_numbers
from unicloze.errors import UsageError
from unicloze.example import collate
from unicloze.files import write_file
from unicloze.finetuning.data import TaskData, buckets_by_length
from unicloze.finetuning.generated import generated, predictions_of
from unicloze.finetuning.task_model import SLOTS_AT_ONCE, TaskModel
from unicloze.progress import Progress
from unicloze.records.record import Record
from unicloze.settings import Recipe
from unicloze.tasks import TASKS
from unicloze.tasks.conversation import turn_of
from unicloze.tasks.task import Outputs, Prediction
from unicloze.training.tree import share

OTHER_FORMAT = "give an --out that ends in .jsonl, or --format jsonl"
"""Advice if predictions do not fit a table."""


def predict(model: TaskModel, data: TaskData, *, progress: bool = False) -> list[Prediction]:
    """One prediction for each record, in order; `truncated` marks those of records that were cut to a row."""
    task = TASKS[model.recipe.task.kind]
    if task.predict is None:

        def generate_all() -> list[Prediction]:
            parts = generated(model, data, progress=progress)
            return [one for some in predictions_of(parts, data.records, model.recipe, model.tokenizer) for one in some]

        return model.compute.world.only_first(generate_all)
    found = task.predict(data.records, data.rows, outputs_of(model, data.rows, progress=progress), model.recipe)
    cut = {row.record for row in data.rows if getattr(row, "cut", False)}
    return [{**one, "truncated": True} if number in cut else one for number, one in enumerate(found)]


def outputs_of(model: TaskModel, rows: Sequence[object], *, progress: bool = False) -> list[Outputs]:
    """Outputs of the task heads for each row, without padding."""
    task, vocabulary = TASKS[model.recipe.task.kind], model.tokenizer.vocabulary
    own: dict[str, torch.Tensor] = {}
    world, blocks = model.compute.world, list(buckets_by_length(rows, SLOTS_AT_ONCE))
    model.model.eval()
    with torch.inference_mode(), Progress("", len(rows), "rows", show=progress) as bar:
        for block in (blocks[number] for number in share(world.rank, world.size, len(blocks))):
            examples = task.lay_out([rows[number] for number in block], vocabulary, model.recipe, None)
            with model.compute.autocast():
                outputs = model.model.outputs(collate(examples, device=model.compute.device))
            each = {name: values.float().cpu() for name, values in outputs.items()}
            counts = {name: (target.weights > 0).sum(axis=1) for name, target in examples.targets.items()}
            for row, number in enumerate(block):
                for name, values in each.items():
                    own[f"{number}.{name}"] = values[row, : counts[name][row]]
                    check_numbers(own[f"{number}.{name}"])
            bar.update(len(block))
    found: list[Outputs] = [{} for _ in rows]
    for key, values in world.share_tensors(own).items():
        number, _, name = key.partition(".")
        found[int(number)] = {**found[int(number)], name: values.numpy()}
    return found


def as_json_lines(predictions: Sequence[Prediction]) -> str:
    """One JSON object per line."""
    return "".join(json.dumps(prediction, ensure_ascii=False) + "\n" for prediction in predictions)


def as_glue(predictions: Sequence[Prediction]) -> str:
    """The format of the GLUE server: lines of "index, tab, prediction" under a header."""
    lines = ["index\tprediction\n"]
    for prediction in predictions:
        name, answer = prediction["id"], prediction["prediction"]
        if not isinstance(answer, str | int | float):
            raise UsageError(f"the prediction of {name} is not a class, a quantity or a text: {OTHER_FORMAT}")
        cells = name, f"{answer:.3f}" if isinstance(answer, float) else str(answer)
        for what, cell in zip(("the id", "the prediction of"), cells, strict=True):
            if not {"\t", "\n", "\r"}.isdisjoint(cell):
                raise UsageError(f"{what} {name!r} contains a tab or a newline: {OTHER_FORMAT}")
        lines.append("\t".join(cells) + "\n")
    return "".join(lines)


def as_official(predictions: Sequence[Prediction]) -> str:
    """The format of the official scripts: a list of answers for CoQA's turns, otherwise answers by id, as for SQuAD."""
    if all("story" in said and "turn" in said for said in predictions):
        turns = [{"id": said["story"], "turn_id": said["turn"], "answer": said["prediction"]} for said in predictions]
        return json.dumps(turns, ensure_ascii=False) + "\n"
    answers = {said["id"]: said["prediction"] for said in predictions}
    if len(answers) < len(predictions):
        again = Counter(said["id"] for said in predictions).most_common(1)[0][0]
        raise UsageError(f"two records have the id '{again}', which json uses as the key: give another --format")
    return json.dumps(answers, ensure_ascii=False) + "\n"


PREDICTION_FORMATS: Mapping[str, Callable[[Sequence[Prediction]], str]] = {
    "jsonl": as_json_lines,
    "json": as_official,
    "glue": as_glue,
}
"""Writers of predictions, by format."""

BEGINNINGS: Mapping[str, Sequence[bytes]] = {
    "jsonl": (rb'\{[^\n]*"prediction": ',),
    "json": (rb"[\{\[]",),
    "glue": (b"index\t",),
}
"""Patterns of how files of these formats begin."""

ENDINGS: Mapping[str, str] = {".jsonl": "jsonl", ".json": "json", ".tsv": "glue"}
"""Format of each file extension."""


def format_of(out: Path | None, format: str | None) -> str:
    """The given format, or that of the file extension; `jsonl` if neither is given."""
    if format is not None and format not in PREDICTION_FORMATS:
        raise UsageError(f"format is {format!r}: give one of {', '.join(PREDICTION_FORMATS)}.")
    if format is not None or out is None:
        return format or "jsonl"
    if out.suffix not in ENDINGS:
        raise UsageError(
            f"{out}: its extension is not a format of predictions: use one of {', '.join(ENDINGS)}, or give --format "
            f"{', '.join(PREDICTION_FORMATS)}."
        )
    return ENDINGS[out.suffix]


def check_format(format: str, recipe: Recipe, records: Sequence[Record]) -> None:
    """Reject a format that cannot hold the predictions of a task or of these records, before predicting."""
    if format == "glue" and "tags" in TASKS[recipe.task.kind].compares:
        raise UsageError(f"the tags of a sentence are not a class, a quantity or a text: {OTHER_FORMAT}")
    PREDICTION_FORMATS[format]([{"id": one.id, "prediction": "", **turn_of(one, recipe.task)} for one in records])


def beside(path: Path) -> Path:
    """File of the no-answer probabilities next to predictions of the format `json`."""
    return path.with_suffix(".na_probabilities.json")


def write_predictions(predictions: Sequence[Prediction], path: Path, format: str) -> None:
    """Write predictions in one of `PREDICTION_FORMATS`.

    For unanswerable questions, the format `json` also writes the no-answer probabilities to `NAME.na_probabilities.json`.
    """
    sure = {said["id"]: said["na_probability"] for said in predictions if "na_probability" in said}
    what, cure = "the predictions", "give another --out"
    write_file(path, PREDICTION_FORMATS[format](predictions), what, cure)
    if sure and format == "json":
        write_file(beside(path), json.dumps(sure) + "\n", what, cure)

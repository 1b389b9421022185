"""Predicts the records of a task and writes the predictions."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from unicloze.arrays import Int64s
from unicloze.decoding.generate import Part, check_settings, generate_parts, with_token_ids
from unicloze.decoding.inputs import check_numbers, generation_format_of, instead, positions_of
from unicloze.decoding.steppers import check_generates
from unicloze.errors import UsageError
from unicloze.evaluation.metrics.result import MetricResult
from unicloze.example import Batch, Examples, collate
from unicloze.files import write_file
from unicloze.finetuning.data import TaskData, buckets_by_length
from unicloze.progress import Progress, counted
from unicloze.records.record import Record
from unicloze.settings import Recipe
from unicloze.tasks import TASKS, generation
from unicloze.tasks.extraction import turn_of
from unicloze.tasks.several import part_of
from unicloze.tasks.task import Outputs, Prediction
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.gradients import share
from unicloze.training.loading import LoadedModel

SLOTS_AT_ONCE = 8192
"""Slots in one forward pass over records, including padding."""


def check_fine_tuned(loaded: LoadedModel) -> None:
    """Reject a model without a task."""
    if not loaded.recipe.task.kind:
        cure = f"give the --out of `unicloze finetune`; {instead(loaded)}"
        raise UsageError(f"{loaded.path} is not a fine-tuned model: {cure}")


OTHER_FORMAT = "give an --out that ends in .jsonl, or --format jsonl"
"""Advice if predictions do not fit a table."""


def predict(model: LoadedModel, data: TaskData, *, progress: bool = False) -> list[Prediction]:
    """One prediction for each record, in order; `truncated` marks those of records that were cut to a row."""
    recipe = model.recipe
    if TASKS[recipe.task.kind].generates:

        def said() -> list[Prediction]:
            parts = generated(model, data, progress=progress)
            return [*itertools.chain(*predictions_of(parts, data.records, recipe, model.tokenizer, cut_records(data)))]

        return model.world.only_first(said)
    return predicted(data, outputs_of(model, data.rows, progress=progress), recipe)


def predicted(data: TaskData, outputs: Sequence[Outputs], recipe: Recipe) -> list[Prediction]:
    """The prediction for each record from the outputs for the rows."""
    task, cut = TASKS[recipe.task.kind], cut_records(data)
    groups: list[tuple[list[object], list[Outputs]]] = [([], []) for _ in data.records]
    for row, output in zip(data.rows, outputs, strict=True):
        groups[row.record][0].append(row)
        groups[row.record][1].append(output)
    said = [task.predict(record, *group, recipe) for record, group in zip(data.records, groups, strict=True)]
    pairs = enumerate(zip(data.records, said, strict=True))
    return [_line(record, prediction, cut=number in cut) for number, (record, prediction) in pairs]


def cut_records(data: TaskData) -> Collection[int]:
    """Indices of the records that were cut to a row."""
    return {row.record for row in data.rows if getattr(row, "cut", False)}


def _line(record: Record, prediction: Prediction, *, cut: bool) -> Prediction:
    return {"id": record.id, **prediction, **({"truncated": True} if cut else {})}


def _passes(model: LoadedModel, rows: Sequence[object]) -> Iterator[tuple[Int64s, Examples, Batch]]:
    """The rows of each forward pass of this process: their numbers, and their examples."""
    world, blocks = model.world, list(buckets_by_length(rows, SLOTS_AT_ONCE))
    model.model.eval()
    for block in (blocks[number] for number in share(world.rank, world.size, len(blocks))):
        own, vocabulary = [rows[number] for number in block], model.tokenizer.vocabulary
        examples = TASKS[model.recipe.task.kind].lay_out(own, vocabulary, model.recipe, None)
        yield block, examples, collate(examples, device=model.compute.device)


def outputs_of(model: LoadedModel, rows: Sequence[object], *, progress: bool = False) -> list[Outputs]:
    """Outputs of the task heads for each row, without padding."""
    own: dict[str, torch.Tensor] = {}
    with torch.inference_mode(), Progress("", len(rows), "rows", show=progress) as bar:
        for block, examples, batch in _passes(model, rows):
            with model.compute.autocast():
                outputs = model.model.outputs(batch)
            each = {name: values.float().cpu() for name, values in outputs.items()}
            counts = {name: (target.weights > 0).sum(axis=1) for name, target in examples.targets.items()}
            for row, number in enumerate(block):
                for name, values in each.items():
                    own[f"{number}.{name}"] = values[row, : counts[name][row]]
                    check_numbers(own[f"{number}.{name}"])
            bar.update(len(block))
    found: list[Outputs] = [{} for _ in rows]
    for key, values in model.world.share_tensors(own).items():
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
        cure = f"use one of {', '.join(ENDINGS)}, or give --format {', '.join(PREDICTION_FORMATS)}."
        raise UsageError(f"{out}: its extension is not a format of predictions: {cure}")
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


def ready_to_generate(recipe: Recipe, tokenizer: Tokenizer) -> Recipe:
    """The recipe of a generation task, with `decoding.max_length` limited to the positions of its model."""
    check_generates(recipe.model)
    one_way = recipe.model.decoder_layers or generation.reads_left_to_right(recipe)
    if recipe.model.kind == "recurrent" and not one_way:
        cure = "give one with use.visibility left_to_right and generation.learning next, or with a decoder (cove)"
        raise UsageError(f"task generation needs an LSTM that reads from left to right and writes on: {cure}")
    segments = max(1, recipe.model.num_segments)
    if not all(0 <= one < segments for one in recipe.generation.segment_ids or ()):
        raise UsageError(f"generation.segment_ids: the model has {segments} segments: each id must be below it")
    recipe = recipe.changed("decoding", max_length=min(recipe.decoding.max_length, generation.room(recipe)[1]))
    check_settings(recipe.decoding, generation_format_of(recipe, tokenizer.vocabulary))
    return recipe


def generated(
    model: LoadedModel, data: TaskData, *, first: int = 0, progress: bool = False, draws: Sequence[int] | None = None
) -> Iterator[Part]:
    """Generate for each record; see `generate_parts`."""
    tokenizer, decoding = model.tokenizer, model.recipe.decoding
    sources = {row.record: row.source for row in data.rows}  # a record with several targets has one row for each
    layout = with_token_ids(generation_format_of(model.recipe, tokenizer.vocabulary), decoding, tokenizer)
    positions = positions_of(model.model)
    longest = max(map(len, sources.values()), default=0)
    if longest > layout.room(positions, decoding.max_length):
        left = positions - len(layout.opening) if layout.restarts else layout.room(positions, longest)
        has = f"with a source of {counted(longest, 'token')} the model has positions for {left}"
        raise UsageError(f"decoding.max_length is {decoding.max_length}, but {has}: give no more")
    tokens = list(sources.values())
    return generate_parts(model.model, tokens, decoding, layout, first=first, progress=progress, draws=draws)


def predictions_of(
    parts: Iterable[Part],
    records: Sequence[Record],
    recipe: Recipe,
    tokenizer: Tokenizer,
    cut: Collection[int] = (),
    first: int = 0,
) -> Iterator[list[Prediction]]:
    """The predictions for the records from the `first` on, after every few batches; `cut` are those whose source was cut."""
    for part in parts:
        said = []
        for number, hypotheses in enumerate(part.results, first):
            texts = [(tokenizer.decode(one.tokens), one.score) for one in hypotheses]
            said.append(prediction_of(records[number], recipe, texts, cut=number in cut))
        if said:
            yield said
        first += len(said)


def prediction_of(
    record: Record, recipe: Recipe, texts: Sequence[tuple[str, float]], *, cut: bool = False
) -> Prediction:
    """The best text generated for a record; if there are several, also all candidates with their scores.

    For a CoQA turn it includes story and turn number, as in the official file; in a task of `task.parts` with classes or
    numbers, `answer` is the one that the text stands for.
    """
    prediction: Prediction = {"prediction": texts[0][0], **turn_of(record, recipe.task)}
    part = part_of(record, recipe.task)
    if part is not None and (part.step is not None or part.classes is not None):
        prediction["answer"] = part.answer_of(texts[0][0], compares="labels" if part.step is None else "numbers")
    if len(texts) > 1:
        prediction["candidates"] = [{"text": text, "score": round(score, 6)} for text, score in texts]
    return _line(record, prediction, cut=cut)


def target_loss(model: LoadedModel, data: TaskData) -> MetricResult:
    """Mean loss per token of the reference targets, each token predicted from the reference tokens before it."""
    own: list[tuple[float, float]] = []
    with torch.no_grad():
        for _, _, batch in _passes(model, data.rows):
            with model.compute.autocast():
                losses = model.model(batch).values()
            own.append((sum(float(loss.total) for loss in losses), sum(float(loss.weight) for loss in losses)))
    total = tokens = 0.0
    for cost, weight in itertools.chain(*model.world.gather(own)):
        total, tokens = total + cost, tokens + weight
    mean, units = total / max(tokens, 1.0), {"loss": "nats per token", "perplexity": ""}
    values = {"loss": mean, "perplexity": math.exp(min(mean, 700.0))}
    return MetricResult(metric="loss", values=values, items=len(data.rows), units=units)

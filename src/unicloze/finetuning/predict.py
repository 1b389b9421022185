"""Predicts the records of a task and writes the predictions."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from unicloze.decoding.generate import Part, check_settings, generate_parts, with_token_ids
from unicloze.decoding.inputs import (
    check_numbers,
    generation_format_of,
    instead,
)
from unicloze.decoding.steppers import check_generates, positions_of
from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics.answers import exact_match, normalise
from unicloze.evaluation.metrics.registry import metric
from unicloze.evaluation.metrics.result import MetricResult
from unicloze.example import collate
from unicloze.files import real_place, replace_file, write_file
from unicloze.finetuning.data import TaskData, buckets_by_length
from unicloze.model.model import UnifiedModel
from unicloze.progress import Progress
from unicloze.records.record import Record
from unicloze.settings import Recipe, TaskSettings
from unicloze.tasks import TASKS, generation
from unicloze.tasks.conversation import turn_of
from unicloze.tasks.several import TaskPart, part_of
from unicloze.tasks.task import Outputs, Prediction
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.gradients import share
from unicloze.training.loading import LoadedModel
from unicloze.training.lock import hold
from unicloze.training.loop import Compute

Line = dict[str, Any]


class PartialFile:
    """A file that is written as NAME.part and renamed once all its lines are there.

    NAME.part.json holds the fingerprints of what the lines depend on. If they match, writing resumes after the last
    complete line; otherwise a warning is printed and the part is replaced when the first new lines are written. After an
    error or a signal the part is kept, with a warning.

    Args:
        path: The file.
        total: Number of lines of the complete file.
        begun_with: Fingerprints of everything the lines depend on, by what they identify.
        fits: Whether a line can have a given number.
    """

    def __init__(
        self, path: Path, total: int, begun_with: Mapping[str, str], fits: Callable[[int, Line], bool]
    ) -> None:
        path = real_place(path)
        self._path, self._total, self._begun_with, self._fits = path, total, dict(begun_with), fits
        self._part = path.with_name(f"{path.name}.part")
        self._about = path.with_name(f"{path.name}.part.json")
        self.lines: list[Line] = []
        """The lines written so far, in order."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            lock = self._part.with_name(f"{self._part.name}.lock")
            stack.enter_context(hold(lock, self._part, "wait for it, or give another --out"))
            self._file = stack.enter_context(self._part.open("a+b"))
            self._begin()
            self._held = stack.pop_all()
        return self

    def _begin(self) -> None:
        """Take over an earlier part if it fits."""
        self._file.seek(0)
        raw = self._file.read()
        if raw and not self._about.is_file():
            raise UniclozeError(f"{self._part} was not started by this command: move it away, or give another --out")
        kept, other = raw[: raw.rfind(b"\n") + 1], self._other()
        self.lines = [] if other else self._read(kept)
        if raw and not self.lines:
            why = f"was started with another {other}" if other else "has other lines"
            warnings.warn(f"{self._part} {why}, and is started again", stacklevel=2)
        self._size: int | None = len(kept) if self.lines else 0

    def _other(self) -> str | None:
        """The first thing that has changed since the part was started; None if nothing has."""
        try:
            former = json.loads(self._about.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            former = None
        former = former if isinstance(former, dict) else {}
        return next((what for what, now in self._begun_with.items() if former.get(what) != now), None)

    def _read(self, raw: bytes) -> list[Line]:
        """The lines of a part; empty if one of them cannot belong to this file."""
        try:
            lines = [json.loads(line) for line in raw.splitlines()]
        except ValueError:
            return []
        fit = len(lines) <= self._total and all(
            isinstance(line, dict) and self._fits(number, line) for number, line in enumerate(lines)
        )
        return lines if fit else []

    def append(self, lines: Sequence[Line]) -> None:
        """Write the next lines and flush them to disk."""
        self._settle()
        self._file.write("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self.lines += lines

    def _settle(self) -> None:
        """Once, truncate what is not kept, but not before there is something to replace it."""
        if self._size is not None:
            self._file.truncate(self._size)
            self._size = None
            if not self.lines:
                replace_file(self._about, json.dumps(self._begun_with))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._held:
            if error is None:
                self._settle()
            self._file.close()  # some systems cannot rename an open file
            self._leave(finished=error is None)

    def _leave(self, *, finished: bool) -> None:
        if finished:
            self._part.replace(self._path)
            self._about.unlink(missing_ok=True)
        else:
            done = self._part.read_bytes().count(b"\n")  # a signal may have arrived between writing and counting
            if not done:
                self._part.unlink()
                self._about.unlink(missing_ok=True)
            elif self.lines or self._size is None:
                warnings.warn(
                    f"{self._part} has {done:,} of {self._total:,} lines; the same command resumes from there",
                    stacklevel=2,
                )


SAMPLES = 20
MOST_WRONG = 12
LONGEST_TEXT = 600
"""Characters after which a field is truncated."""


def with_references(
    predictions: Sequence[Prediction], records: Sequence[Record], settings: TaskSettings
) -> list[Prediction]:
    """Each prediction with its `reference`, JSON-serialisable."""
    task = TASKS[settings.kind]
    return [
        {**prediction, "reference": _plain(task.reference(record, settings))}
        for prediction, record in zip(predictions, records, strict=True)
    ]


def samples(answered: Sequence[Prediction], records: Sequence[Record], settings: TaskSettings) -> list[dict[str, Any]]:
    """Up to twenty predictions with the texts of their records, beginning with up to twelve wrong ones.

    Both kinds are spread evenly over the file. For quantities the largest errors come first.
    """
    generated = metric(settings.metrics[0]).compares == "texts"  # a text can be good without matching the reference
    parts = [part_of(record, settings) for record in records]
    rights = [
        _right_in(part, one, record) if part is not None
        else None if generated else is_right(one["prediction"], one["reference"])
        for part, one, record in zip(parts, answered, records, strict=True)
    ]  # fmt: skip
    wrong = [number for number, right in enumerate(rights) if right is False]
    other = [number for number, right in enumerate(rights) if right is not False]
    if not generated and other and all(right is None for right in rights):
        wrong = sorted(other, key=lambda number: -_error(answered[number]))[: SAMPLES // 2]
        other = sorted(set(other) - set(wrong))
    few_wrong = _evenly(wrong, max(MOST_WRONG, SAMPLES - len(other)))
    chosen = [*few_wrong, *_evenly(other, SAMPLES - len(few_wrong))]
    return [_sample(answered[number], records[number], settings, rights[number]) for number in chosen]


def _right_in(part: TaskPart, one: Mapping[str, Any], record: Record) -> bool | None:
    """Whether a prediction in one of several tasks is right; None for numbers and free texts."""
    compares = metric(part.metrics[0]).compares
    if part.unsupervised or compares in ("texts", "numbers"):
        return None
    right = part.reference_of(record, one["reference"], compares=compares)
    return bool(part.answer_of(one["prediction"], compares=compares) == right)


def is_right(prediction: Any, reference: Any) -> bool | None:
    """Whether a prediction equals the reference, or one of several as exact match compares them; None for a quantity."""
    if isinstance(prediction, float):
        return None
    reference = _answers(reference)
    if isinstance(reference, list) and isinstance(prediction, str):
        wanted = [text for text in reference if normalise(text)] or [""]
        return any(exact_match(prediction, text) for text in wanted)
    return bool(prediction == reference) or str(prediction) == str(reference)


def _answers(reference: Any) -> Any:
    """The answers of a question, without its other fields."""
    return reference["answers"] if isinstance(reference, Mapping) and "answers" in reference else reference


def _error(one: Mapping[str, Any]) -> float:
    """Absolute error of a quantity; 0 for anything else."""
    prediction, reference = one["prediction"], one["reference"]
    numbers = isinstance(prediction, float) and isinstance(reference, float)
    return abs(prediction - reference) if numbers else 0.0


def _evenly(numbers: Sequence[int], most: int) -> list[int]:
    """At most `most` of the numbers, evenly spaced."""
    count = min(most, len(numbers))
    return [numbers[place * len(numbers) // count] for place in range(count)]


def _sample(one: Prediction, record: Record, settings: TaskSettings, right: bool | None) -> dict[str, Any]:
    fields = {}
    for role in TASKS[settings.kind].roles:
        value = record.get(settings, role)
        readable = isinstance(value, str | int | float) or _is_texts(value)
        if readable and str(value) != str(one["reference"]) and [value] != one["reference"]:
            fields[role] = _cut(value)
    probabilities = one.get("probabilities")
    confidence = probabilities.get(str(one["prediction"])) if isinstance(probabilities, Mapping) else None
    return {
        "id": one["id"],
        "fields": fields,
        "prediction": _cut(one["prediction"]),
        "reference": _cut(_answers(one["reference"])),
        "right": right,
        "confidence": confidence,
    }


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


def _cut(value: Any) -> Any:
    """The value as truncated text or texts; a number is kept."""
    if isinstance(value, int | float):
        return value
    if _is_texts(value):
        return [_cut(part) for part in value[:50]]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}\u2026"


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


SLOTS_AT_ONCE = 8192
"""Slots in one forward pass over records, including padding."""


@dataclass(frozen=True)
class TaskModel:
    """A fine-tuned model, ready to predict."""

    model: UnifiedModel  # the model with the task heads
    tokenizer: Tokenizer  # tokenizer of the model
    recipe: Recipe  # recipe with the task
    compute: Compute  # device and precision to compute with


def load_task_model(loaded: LoadedModel) -> TaskModel:
    """A fine-tuned model, ready to predict."""
    if not loaded.recipe.task.kind:
        raise UsageError(
            f"{loaded.path} is not a fine-tuned model: give the --out of `unicloze finetune`; {instead(loaded)}"
        )
    return TaskModel(loaded.model, loaded.tokenizer, loaded.recipe, loaded.compute)


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

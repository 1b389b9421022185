"""Scores the predictions of a task, of a model or of a file, and interprets them against baselines."""

from __future__ import annotations

import dataclasses
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unicloze.errors import UsageError, option_of
from unicloze.evaluation.metrics.answers import Gold, best_threshold, exact_match, normalise, token_f1
from unicloze.evaluation.metrics.files import Item, check_match, read_items, value_of
from unicloze.evaluation.metrics.labels import LEAST, calibration
from unicloze.evaluation.metrics.registry import BY_ID, METRICS, measurable, metric, of_lists, standard_errors
from unicloze.evaluation.metrics.result import Compared, MetricResult
from unicloze.files import Plain
from unicloze.records.record import Record, evenly, refuse_repeated
from unicloze.settings import Recipe, TaskSettings, chosen
from unicloze.tasks import TASKS
from unicloze.tasks.extraction import ExtractionSettings, no_answer_margin, with_threshold
from unicloze.tasks.several import TaskPart, by_part, has_parts, metrics_of, part_of, parts_of, records_of
from unicloze.tasks.task import OF_TEXTS, Labelled, Prediction
from unicloze.training.verdict import STANDARD_ERRORS


def check_metrics(recipe: Recipe) -> None:
    """Reject unknown metrics, metrics that do not compare what the task predicts, and options that no metric has."""
    known = {option for each in METRICS.values() for option in each.options}
    names = metrics_of(recipe.task)
    named = [metric(name) for name in names]
    for option in recipe.task.metric_options:
        if option not in known:
            raise UsageError(f"task.metric_options names {option}: metrics have the options {', '.join(sorted(known))}")
        if not any(option in each.options for each in named):
            none, cure = f"none of the metrics {', '.join(names)} has it", f"{option_of('task.metric_options')} '{{}}'"
            raise UsageError(f"task.metric_options names {option}, but {none}: leave it out ({cure})")
    for part in parts_of(recipe.task):
        allowed = part.compares(TASKS[recipe.task.kind])
        for name in part.metrics:
            compares = metric(name).compares
            if allowed and compares not in allowed:
                other = f"which compares {compares}, but its predictions are {' or '.join(allowed)}"
                raise UsageError(f"{part.where} names {name}, {other}: name another metric")
            metric(name).check_options(options_of(name, recipe))


def options_of(name: str, recipe: Recipe) -> dict[str, str]:
    """Those of the task's metric options that apply to a metric."""
    return {key: value for key, value in recipe.task.metric_options.items() if key in metric(name).options}


def with_best_threshold(
    recipe: Recipe, records: Sequence[Record], predictions: Sequence[Prediction]
) -> tuple[Recipe, Sequence[Prediction]]:
    """The recipe with the no-answer threshold of the best F1, halfway to the next margin, and its predictions.

    Both are returned unchanged if the task has no unanswerable questions or the recipe already has a threshold.
    """
    task = recipe.task
    if not isinstance(task, ExtractionSettings) or not task.unanswerable or task.no_answer_threshold is not None:
        return recipe, predictions
    right = dict(zip((record.id for record in records), _references(records, task), strict=True))
    margins = {one["id"]: no_answer_margin(one) for one in predictions}
    best = {one["id"]: one["n_best"][0]["text"] if one["n_best"] else "" for one in predictions}
    f1 = {name: max(token_f1(text, wanted) for wanted in right[name] or [""]) for name, text in best.items()}
    _, threshold = best_threshold(margins, f1, {name for name, texts in right.items() if texts})
    above = min((margin for margin in margins.values() if threshold < margin < math.inf), default=threshold)
    threshold = (threshold + above) / 2
    decided = recipe.changed("task", no_answer_threshold=threshold)
    return decided, [with_threshold(one, threshold) for one in predictions]


def check_averaged(recipes: Sequence[Recipe]) -> None:
    """Reject models whose predictions cannot be averaged."""
    first, *others = (recipe.task for recipe in recipes)
    if first.kind not in OF_TEXTS:
        raise UsageError(f"predictions of task.kind {first.kind} are not averaged: leave out also")
    for other in others:
        labels = [task.labels if isinstance(task, Labelled) else None for task in (first, other)]
        if other.kind != first.kind or labels[0] != labels[1]:
            raise UsageError("also names a model of another task or with other classes: give models of one task")


def averaged(each: Sequence[Sequence[Prediction]]) -> list[Prediction]:
    """The mean of the probabilities, or of the quantities, that several models predict for the same records."""
    averages: list[Prediction] = []
    for of_record in zip(*each, strict=True):
        first = next((one for one in of_record if "truncated" in one), of_record[0])
        if "probabilities" not in first:
            averages.append({**first, "prediction": float(np.mean([one["prediction"] for one in of_record]))})
            continue
        labels = first["probabilities"]
        mean = {label: float(np.mean([one["probabilities"][label] for one in of_record])) for label in labels}
        rounded = {label: round(share, 6) for label, share in mean.items()}
        averages.append({**first, "prediction": max(mean, key=mean.__getitem__), "probabilities": rounded})
    return averages


def _references(records: Sequence[Record], settings: TaskSettings) -> list[Any]:
    """What the predictions of records are compared with."""
    return [TASKS[settings.kind].reference(record, settings) for record in records]


MEAN = "mean of tasks"
"""Result that selects the best checkpoint of several tasks: the mean of the first metric of each."""

Answers = Callable[[Compared], Sequence[Any]]
"""Gives the answers to all records, read for what a metric compares."""


@dataclass(frozen=True)
class Scorer:
    """Compares answers to the records of a part of a task with the right ones."""

    recipe: Recipe  # recipe of the task
    records: Sequence[Record]  # the records of the part
    numbers: Sequence[int]  # their indices among all records
    part: TaskPart

    def references(self, name: str) -> list[Any]:
        """The right answers, as a metric compares them."""
        compares = metric(name).compares
        pairs = zip(self.records, _references(self.records, self.recipe.task), strict=True)
        right = [self.part.reference_of(record, reference, compares=compares) for record, reference in pairs]
        if compares != "coqa":
            return right
        return [Gold(**one) if isinstance(one, Mapping) else Gold(answers=one) for one in right]

    def answers(self, name: str, answers: Answers) -> list[Any]:
        """The answers to its records, as a metric compares them."""
        compares = metric(name).compares
        every = answers(compares if not self.part.label else "tags" if self.part.tags else "texts")
        return [self.part.answer_of(every[number], compares=compares) for number in self.numbers]

    def result(self, name: str, answers: Answers, *, errors: bool = False) -> MetricResult:
        """The result of one of its metrics, with standard errors if they are wanted."""
        if metric(name).compares in BY_ID:
            refuse_repeated(self.records)
        options = options_of(name, self.recipe)
        result = of_lists(name, self.answers(name, answers), self.references(name), errors=errors, **options)
        named: dict[str, Any] = {
            of_values: {self.part.name(key): value for key, value in getattr(result, of_values).items()}
            for of_values in ("values", "units", "errors")
        }
        return dataclasses.replace(result, **named, undefined=list(map(self.part.name, result.undefined)))


def scorers(records: Sequence[Record], recipe: Recipe) -> list[Scorer]:
    """One scorer for each part that has answers to compare."""
    numbers = by_part(records, recipe.task)
    parts = [(part, numbers[part.label]) for part in parts_of(recipe.task) if numbers.get(part.label)]
    return [Scorer(recipe, [records[one] for one in own], own, part) for part, own in parts if not part.unsupervised]


def measure(
    predictions: Sequence[Prediction], records: Sequence[Record], recipe: Recipe, *, errors: bool = False
) -> Mapping[str, MetricResult]:
    """Score predictions by the metrics of the task or of its parts, and the probabilities of classes by calibration.

    With `errors`, the standard errors of values are estimated where it is quick.
    """
    answers = [prediction["prediction"] for prediction in predictions]
    results = _measured(lambda _: answers, records, recipe, errors=errors)
    probabilities = [prediction["probabilities"] for prediction in predictions if "probabilities" in prediction]
    if probabilities and len(probabilities) == len(predictions) and not has_parts(recipe.task):
        results["calibration"] = calibration(probabilities, _references(records, recipe.task))
    return results


def loss_error(
    one: Sequence[Prediction], other: Sequence[Prediction], records: Sequence[Record], task: Labelled
) -> float:
    """Standard error of the difference between the means of -log p of two predictions of the same records."""
    right = list(map(str, _references(records, task)))
    given = np.array(
        [[each["probabilities"][label] for each, label in zip(side, right, strict=True)] for side in (one, other)]
    )
    own, theirs = np.log(np.maximum(given, LEAST))
    return float(np.std(own - theirs, ddof=1) / math.sqrt(len(right))) if len(right) > 1 else math.inf


def check_answers(records: Sequence[Record], recipe: Recipe) -> None:
    """Reject a development file without references, or with references that the metrics cannot compare."""
    for scorer in scorers(records, recipe):
        for name in scorer.part.metrics:
            compares, right = metric(name).compares, scorer.references(name)
            if compares in BY_ID:
                refuse_repeated(scorer.records)
                continue
            if name.startswith("rouge"):
                _warn_of_other_scripts(right)
            wanted = right[:1] if compares == "texts" else right  # some metrics of texts are slow
            try:
                tried = [texts[0] for texts in wanted] if compares == "texts" else wanted
                metric(name)(tried, wanted, **options_of(name, recipe))
            except UsageError as error:
                message = f"{scorer.part.where} names {name}, which does not fit the development file: {error}"
                raise UsageError(message) from error


def _warn_of_other_scripts(references: Sequence[Any]) -> None:
    letters = [letter for texts in references for letter in "".join(texts).lower() if letter.isalpha()]
    if 2 * sum("a" <= letter <= "z" for letter in letters) < len(letters):
        warnings.warn(
            "ROUGE reads the letters a to z and digits alone, and most letters of the development file are others: name a "
            "metric that reads them, such as --task.metrics bleu",
            stacklevel=3,
        )


def _measured(answers: Answers, records: Sequence[Record], recipe: Recipe, *, errors: bool) -> dict[str, MetricResult]:
    """The results of all parts by name; of several, their mean by the first metric of each comes first."""
    results: dict[str, MetricResult] = {}
    values, known, items = [], [], 0
    for scorer in scorers(records, recipe):
        part, items = scorer.part, items + len(scorer.records)
        for name in part.metrics:
            results[part.name(name)] = scorer.result(name, answers, errors=errors)
        first, result = metric(part.metrics[0]), results[part.name(part.metrics[0])]
        value = result.values[part.name(first.headline)]
        values.append(value if first.higher_is_better else -value)
        known.append(result.errors.get(part.name(first.headline), np.nan))
    if not has_parts(recipe.task):
        return results
    mean, error = (float(np.mean(values)), _error_of_mean(known)) if values else (np.nan, None)
    mean_errors = {} if error is None else {MEAN: error}
    return {MEAN: MetricResult(metric=MEAN, values={MEAN: mean}, items=items, errors=mean_errors), **results}


def _error_of_mean(errors: Sequence[float]) -> float | None:
    """Standard error of a mean of independent values; None if it is not known."""
    error = float(np.hypot.reduce(errors)) / len(errors) if errors else np.nan
    return None if np.isnan(error) else error


def headline_error(
    predictions: Sequence[Any], records: Sequence[Record], recipe: Recipe, against: Sequence[Any] | None = None
) -> float | None:
    """Standard error of the value that selects the checkpoint, or of its difference from other answers; None if not known."""
    errors = []
    for scorer in scorers(records, recipe):
        name = scorer.part.metrics[0]
        answers, options = scorer.answers(name, lambda _: predictions), options_of(name, recipe)
        others = None if against is None else scorer.answers(name, lambda _: against)
        known = standard_errors(name, answers, scorer.references(name), against=others, **options)
        errors.append(known.get(metric(name).headline, np.nan))
    return _error_of_mean(errors)


def chosen_value(recipe: Recipe) -> str:
    """Name of the value that selects the best checkpoint."""
    return MEAN if has_parts(recipe.task) else metric(recipe.task.metrics[0]).headline


def chosen_result(results: Mapping[str, MetricResult], recipe: Recipe) -> MetricResult:
    """The result with the value that selects the best checkpoint."""
    return results[MEAN if has_parts(recipe.task) else recipe.task.metrics[0]]


def headline(results: Mapping[str, MetricResult], recipe: Recipe) -> float:
    """The value that selects the best checkpoint; higher is better."""
    value = chosen_result(results, recipe).values[chosen_value(recipe)]
    # The correlation of constant predictions is NaN, which counts as the worst value.
    if np.isnan(value):
        return -np.inf
    return value if has_parts(recipe.task) or metric(recipe.task.metrics[0]).higher_is_better else -value


Floats = npt.NDArray[np.floating]
TEMPERATURES = np.geomspace(1, 100, 93)
"""What logits may be divided by: training on few labels makes them too large."""


def temperature(
    logits: Floats, right: npt.ArrayLike, among: Floats = TEMPERATURES, bias: Floats | float = 0.0
) -> tuple[float, float]:
    """The temperature that makes the right classes most likely (Guo et al. 2017, Section 4.2), and their mean -log p with it.

    One more record counts for which every class is right to the same degree: few records that are all right do not ask for
    certainty (as Platt 1999 smooths two classes).

    Args:
        logits: Those of each record, which are divided. *Shape:* (records, classes)
        right: Place of the right class of each record.
        among: Temperatures to choose from.
        bias: What is added to the divided logits. *Shape:* (records, classes), or one number
    """
    rows = np.arange(len(logits))

    def loss(softer: float) -> float:
        scaled = logits.astype(np.float64) / softer + bias
        scaled -= scaled.max(axis=1, keepdims=True)
        nats = np.log(np.exp(scaled).sum(axis=1, keepdims=True)) - scaled
        return float((nats[rows, right].sum() + nats.mean()) / (len(rows) + 1))

    least, best = min((loss(softer), softer) for softer in among)
    return float(best), least


def note_one_class(records: Sequence[Record], settings: TaskSettings) -> None:
    """Warn of a development file whose records all have one class."""
    found = set(_references(records, settings)) if settings.kind == "classification" else set()
    if len(found) == 1 and len(records) > 1:
        said = f"all {len(records):,} development records have the label '{found.pop()}'"
        warnings.warn(f"{said}, so their score tells little: add some of other classes", stacklevel=3)


def right_classes(records: Sequence[Record], settings: Labelled) -> list[int]:
    """Place of the right class of each record among the task's."""
    return [(settings.labels or []).index(label) for label in _references(records, settings)]


@dataclass(frozen=True)
class Evaluation:
    """An evaluation on the development file."""

    step: int
    value: float  # of the metric that selects the checkpoint; higher is better
    error: float = math.inf  # its standard error, infinite if it is not known
    loss: float | None = None  # mean of -log p of the right class or target token; None without probabilities
    loss_error: float = math.inf  # standard error of its difference from that of the evaluation kept until then


def is_better(one: Evaluation, best: Evaluation, former: Sequence[Evaluation]) -> bool:
    """Whether an evaluation replaces the best of the former ones: if its value is higher, or as high and its loss is lower.

    After a head fitted to few labels, only if it is clearly likelier and not clearly behind the highest value, or if the best
    is clearly behind; two standard errors are clear. The best of many on few records is often best by chance. Once such steps
    have replaced the fitted head, both a higher value and a lower loss are enough.
    """
    if one.loss is None or best.loss is None:
        return one.value > best.value
    if former[0].step > 0:
        return (one.value, -one.loss) > (best.value, -best.loss)
    highest = max(one, *former, key=lambda each: each.value)
    errors = [each.error for each in (one, best, highest) if math.isfinite(each.error)]  # 0 where all are right
    least = highest.value - STANDARD_ERRORS * max(errors, default=math.inf)
    likelier = one.loss < best.loss - STANDARD_ERRORS * one.loss_error
    higher = best.step > former[0].step and one.value > best.value and one.loss < best.loss
    return one.value >= least and (best.value < least or likelier or higher)


@dataclass(frozen=True)
class TaskScores(Plain):
    """Scores of the predictions of a task.

    Args:
        results: Results by metric.
    """

    results: Mapping[str, MetricResult]

    def __str__(self) -> str:
        return "\n".join(map(str, self.results.values()))


def measure_file(
    predictions: Path,
    references: Path,
    recipe: Recipe,
    name: str | None = None,
    options: Mapping[str, str] | None = None,
) -> TaskScores:
    """Score a file of predictions against labelled records, with standard errors."""
    if not recipe.task.kind:
        raise UsageError(f"{recipe.name} is not a task recipe: see `unicloze recipes`.")
    recipe = _measuring(recipe, name, options or {})
    check_metrics(recipe)
    records, items = records_of(references, recipe.task, dev=True), read_items(predictions, ("prediction",))
    wanted = [Item(value=None, place=record.place, id=record.get(recipe.task, "id")) for record in records]
    check_match(predictions, items, references, wanted)
    return TaskScores(
        _measured(lambda compares: [value_of(one, compares) for one in items], records, recipe, errors=True)
    )


def _measuring(recipe: Recipe, name: str | None, options: Mapping[str, str]) -> Recipe:
    """The recipe with the metrics to measure, `name` or those whose programs are installed, and their options."""

    def wanted(names: Sequence[str]) -> list[str]:
        return measurable(names) if name is None else [name]

    task = recipe.task
    if has_parts(task):
        entries = zip(task.parts, parts_of(task), strict=True)
        task = dataclasses.replace(task, parts=[{**entry, "metrics": wanted(part.metrics)} for entry, part in entries])
    else:
        task = dataclasses.replace(task, metrics=wanted(task.metrics))
    names = metrics_of(task)
    if not names:
        raise UsageError(f"The recipe {recipe.name} has no metric: name one.")
    own = {option: value for one in names for option, value in options_of(one, recipe).items()}
    return dataclasses.replace(recipe, task=dataclasses.replace(task, metric_options={**own, **options}))


RISE = 0.5
"""Points that the last evaluation must gain to count as still improving."""
FALL = 2.0
"""Points from the best to the last evaluation that count as a decline."""


@dataclass(frozen=True)
class BaselineScores(Plain):
    """Scores of a baseline on the development file.

    Args:
        name: Description of the baseline.
        results: Results by metric.
        answers: Its answers, to be compared with a model's on the same records.
    """

    name: str
    results: Mapping[str, MetricResult]
    answers: Sequence[Any] = ()

    def to_dict(self) -> dict[str, Any]:
        """The name and the results as a JSON-serialisable dictionary."""
        return {"name": self.name, "results": {name: result.to_dict() for name, result in self.results.items()}}


def baseline_scores(train: Sequence[Record], dev: Sequence[Record], recipe: Recipe) -> list[BaselineScores]:
    """Scores of a task's baselines, the simplest first; those that do not apply to these records are left out."""
    task, scored = TASKS[recipe.task.kind], []
    for baseline in filter(None, (task.baseline(train, dev, recipe), task.rival(train, dev, recipe))):
        answers = [{"id": one.id, "prediction": answer} for one, answer in zip(dev, baseline.answers, strict=True)]
        scored.append(BaselineScores(baseline.name, measure(answers, dev, recipe), baseline.answers))
    return scored


def verdict_on(
    scores: Mapping[str, MetricResult],
    course: Sequence[tuple[int, float]],
    baselines: Sequence[BaselineScores],
    recipe: Recipe,
    difference: Callable[[BaselineScores], float | None] = lambda _: None,
) -> str:
    """Interpretation of the scores of the best evaluation, in words; `course` has the step and value of each evaluation."""
    key, result = chosen_value(recipe), chosen_result(scores, recipe)
    said = [_against(headline(scores, recipe), difference(baseline), baseline, recipe) for baseline in baselines]
    if result.units.get(key, "%") == "%":
        said.append(_advice(course, result.errors.get(key), chosen(recipe.finetuning.epochs)))
    return "; ".join(filter(None, said))


def _against(value: float, error: float | None, baseline: BaselineScores, recipe: Recipe) -> str:
    key, difference = chosen_value(recipe), value - headline(baseline.results, recipe)
    result = chosen_result(baseline.results, recipe)
    rival = f"{baseline.name} ({key} {result.shown(key)})"
    if difference == 0:
        return f"equal to {rival}"
    what = f"{result.shown(key, abs(difference))} {'better' if difference > 0 else 'worse'} than {rival}"
    if error is None:
        return f"{what}; the standard error of the difference is not known"
    noise = f"with a standard error of {result.shown(key, error)}"
    if abs(difference) <= STANDARD_ERRORS * error:
        return f"no different from {rival}: {'+' if difference > 0 else ''}{result.shown(key, difference)} {noise}"
    what += f", {noise}"
    return what if difference > 0 else f"{what}: use that instead, or more records or another model"


def _advice(course: Sequence[tuple[int, float]], error: float | None, epochs: float) -> str:
    """Advice from the course of the evaluations, beyond one standard error; empty if the error is not known."""
    if len(course) < 2 or error is None:
        return ""
    values = [value for _, value in course]
    highest, last = max(values), values[-1]
    if last == highest and last - max(values[:-1]) >= max(RISE, error):
        return "still improving at the last evaluation: raise finetuning.epochs"
    if highest - last < max(FALL, error):
        return ""
    if course[values.index(highest)][0] == 0:
        return f"the last evaluation is {highest - last:.2f} below the fitted head: lower training.learning_rate"
    return (
        f"the last evaluation is {highest - last:.2f} below the highest one{': fewer epochs are enough' * (epochs > 1)}"
    )


SAMPLES = 20
MOST_WRONG = 12
LONGEST_TEXT = 600
"""Characters after which a field is truncated."""


def with_references(
    predictions: Sequence[Prediction], records: Sequence[Record], settings: TaskSettings
) -> list[Prediction]:
    """Each prediction with its `reference`, JSON-serialisable."""
    pairs = zip(predictions, _references(records, settings), strict=True)
    return [{**prediction, "reference": reference} for prediction, reference in pairs]


def samples(answered: Sequence[Prediction], records: Sequence[Record], settings: TaskSettings) -> list[dict[str, Any]]:
    """Up to twenty predictions with the texts of their records, beginning with up to twelve wrong ones.

    Both kinds are spread evenly over the file. For quantities the largest errors come first.
    """
    pairs = zip(answered, records, strict=True)
    rights = [_is_right_in(part_of(record, settings), one, record) for one, record in pairs]
    wrong = [number for number, right in enumerate(rights) if right is False]
    other = [number for number, right in enumerate(rights) if right is not False]
    if "numbers" in TASKS[settings.kind].compares:
        errors = [abs(one["prediction"] - one["reference"]) for one in answered]
        wrong = sorted(other, key=lambda number: -errors[number])[: SAMPLES // 2]
        other = sorted(set(other) - set(wrong))
    few_wrong = evenly(wrong, max(MOST_WRONG, SAMPLES - len(other)))
    shown = [*few_wrong, *evenly(other, SAMPLES - len(few_wrong))]
    return [_sample(answered[number], records[number], settings, rights[number]) for number in shown]


def _is_right_in(part: TaskPart | None, one: Mapping[str, Any], record: Record) -> bool | None:
    """Whether a prediction is right; None for numbers and free texts, which can be good without matching the reference."""
    compares = "texts" if part is None or part.unsupervised else metric(part.metrics[0]).compares
    if part is None or compares in ("texts", "numbers"):
        return None
    reference = part.reference_of(record, one["reference"], compares=compares)
    return is_right(part.answer_of(one["prediction"], compares=compares), reference)


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


def _sample(one: Prediction, record: Record, settings: TaskSettings, right: bool | None) -> dict[str, Any]:
    fields = {}
    for role in TASKS[settings.kind].roles:
        value = record.get(settings, role)
        readable = isinstance(value, str | int | float) or _is_texts(value)
        if readable and str(value) != str(one["reference"]) and [value] != one["reference"]:
            fields[role] = _cut(value)
    probabilities = one.get("probabilities")
    confidence = probabilities.get(str(one["prediction"])) if isinstance(probabilities, Mapping) else None
    sides = {"prediction": _cut(one["prediction"]), "reference": _cut(_answers(one["reference"]))}
    return {"id": one["id"], "fields": fields, **sides, "right": right, "confidence": confidence}


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

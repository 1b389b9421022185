"""The verbs that fine-tune a model on a task, and that predict and generate with it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from unicloze.cores import tune_allocator
from unicloze.errors import UsageError, check_at_least, check_seed
from unicloze.settings import Precision, PredictionFormat
from unicloze.verbs.options import (
    JSON,
    OF_FILES,
    RUNS,
    Device,
    File,
    Folder,
    Model,
    Number,
    OfFiles,
    OneOf,
    Option,
    Overrides,
    PathLike,
    Settings,
    check_file,
    check_fixed,
    check_one_given,
    clean,
    folder_at,
)

if TYPE_CHECKING:
    from unicloze.finetuning.seeds import FinetuneSummary, GlueSummary
    from unicloze.records.record import Record
    from unicloze.settings import Recipe
    from unicloze.tasks.task import Predictions
    from unicloze.tasks.unanswerable import Written
    from unicloze.training.loading import LoadedModel

WHOLE_GLUE = {"glue": "glue-mnli", "glue-v1": "glue-mnli-v1"}
"""Task names that stand for all GLUE tasks, and the first of these."""
GLUE_KEEPS = (
    "task.max_length", "task.head", "task.head_dropout", "task.pooling", "task.evaluate_records", "task.train_records",
)  # fmt: skip
"""Task settings that all GLUE tasks may share."""

SOURCES = OneOf("sources", required=True)


def finetune(
    task: Annotated[PathLike, Option("NAME|FILE", otherwise="classification")],
    model: Model,
    train: File,
    dev: File | None = None,
    out: Folder | None = None,
    seeds: Number = 1,
    grid_budget: Number = 1,
    quiet: bool = False,
    overrides: Annotated[
        Overrides | None,
        Settings(
            ("task.fields", "task.metrics", "task.max_length", "finetuning.epochs",
             "finetuning.patience", "training.batch_size", "training.learning_rate", "training.seed", "model.dropout"),
            recipe="task",
        ),
    ] = None,
) -> FinetuneSummary | GlueSummary:  # fmt: skip
    """Fine-tune a model on labelled records, or resume an interrupted run; the best checkpoint is kept.

    Args:
        task: Task recipe. `glue`, or `glue-v1` with UniLM v1's settings, fine-tunes on every GLUE task in the folder
            `train`, and writes the scores and the files for the GLUE server.
        model: Model to start from: run directory, one of its checkpoints, or a Hugging Face model folder; in Python also
            a loaded model. The name or the .yaml file of a pre-training recipe starts from scratch: its network with random
            weights, and a tokenizer trained on the texts of the training records.
        train: Training records, a file or a folder of files: .jsonl, .tsv, .csv or the task's own format, also .gz.
        dev: Development records, which also choose the best checkpoint.
        out: Directory of the run; default: runs/NAME.
        seeds: Number of runs, each with its own seed.
        grid_budget: For `glue`: number of settings of UniLMv2's grid (Table 9) to try per task, beginning with the recipe's.
        quiet: Show no progress.
        overrides: Settings by dotted name.

    Examples:
        unicloze finetune --task classification --model runs/quickstart --train train.jsonl --dev dev.jsonl
        unicloze finetune --task regression --model runs/quickstart --train train.tsv --dev dev.tsv --seeds 5
            --training.learning_rate 1e-4 --out runs/mine

    Raises:
        UsageError: The task or a setting is invalid or would have no effect, or the directory holds a run with other
            settings.
        UniclozeError: A record, the model or the directory is unusable, or the loss is not finite.
    """
    from unicloze.recipes import load_recipe, read_recipe, recipe_names, task_names, validation

    check_at_least(1, seeds=seeds, grid_budget=grid_budget)
    given = validation.given_settings(overrides)
    validation.refuse_decided_in_task(given)
    if task in WHOLE_GLUE:
        return _glue(task == "glue-v1", model, Path(train), dev, out, seeds, grid_budget, quiet, given)
    if grid_budget > 1:
        raise UsageError("option --grid-budget: only --task glue searches a grid: leave it out.")
    of_objective, others = _apart(given)
    files = read_recipe(task)
    recipe = files.recipe(others)
    written = {key: origin for key, origin in files.given_for_a_task().items() if key not in given}
    validation.refuse_unread_in_task_files(recipe, written)
    for key in written:
        section, _, name = key.partition(".")
        if section == "objective":
            of_objective[key] = getattr(recipe.objective, name)
    tune_allocator()
    from unicloze.finetuning.initial import adaptable, refuse_word_vectors, task_recipe, untrained
    from unicloze.finetuning.seeds import finetune_seeds
    from unicloze.interop.read import open_model
    from unicloze.tasks.generation import with_learning

    name = str(model) if isinstance(model, str | Path) else ""
    if name.endswith((".yaml", ".yml")) or (name in recipe_names() and not Path(name).exists()):
        start = untrained(load_recipe(name), recipe, Path(train), progress=not quiet)
    else:
        refuse_word_vectors(recipe)
        start = open_model(model)
    if str(task) in task_names():
        recipe = adaptable(recipe, given)
    of_model = {key: origin for key, origin in written.items() if key.startswith(("model.", "use."))}
    recipe = task_recipe(recipe, start, [*given, *of_model], of_objective, of_model)
    validation.refuse_unread_in_task([with_learning(recipe)], given)
    of_dev = {"finetuning.patience": recipe.finetuning.patience, "task.evaluate_records": recipe.task.evaluate_records}
    for key in () if dev is not None else given.keys() & {key for key, value in of_dev.items() if value is not None}:
        raise UsageError(f"option --{key} has no effect without a development file: give --dev too, or leave it out.")
    folder = folder_at(out, RUNS / recipe.name)
    dev = None if dev is None else Path(dev)
    return finetune_seeds(recipe, start, Path(train), dev, folder, seeds=seeds, progress=not quiet)


def _apart(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the objective, and the others."""
    of_objective = {key: value for key, value in given.items() if key.startswith("objective.")}
    return of_objective, {key: value for key, value in given.items() if key not in of_objective}


def _glue(
    first: bool,
    model: PathLike | LoadedModel,
    folder: Path,
    dev: PathLike | None,
    out: PathLike | None,
    seeds: int,
    grid_budget: int,
    quiet: bool,
    given: Mapping[str, Any],
) -> GlueSummary:
    """Fine-tune on every GLUE task in a folder, with UniLM v1's recipes if `first`."""
    from unicloze.recipes import load_recipe
    from unicloze.recipes.validation import refuse_unread_in_task

    if dev is not None:
        raise UsageError("option --dev: the folder --train holds the development file of each GLUE task: leave it out.")
    if key := next((key for key in given if key.startswith("task.") and key not in GLUE_KEEPS), None):
        raise UsageError(f"option --{key} differs between GLUE tasks: fine-tune on one task with --task glue-NAME.")
    if first and grid_budget > 1:
        raise UsageError("option --grid-budget: UniLM v1 gives no grid: leave it out, or give --task glue.")
    tune_allocator()
    from unicloze.finetuning.initial import refuse_word_vectors, task_recipe
    from unicloze.finetuning.seeds import GRID, finetune_glue
    from unicloze.interop.read import open_model

    if grid_budget > 1 and (key := next((key for key in given if key in GRID), None)):
        raise UsageError(f"option --{key}: --grid-budget searches it: leave one of them out.")
    start = open_model(model)

    def recipe_of(task: str, changes: Mapping[str, Any]) -> Recipe:
        values = {**given, **changes}
        of_objective, others = _apart(values)
        named = load_recipe(f"glue-{task}{'-v1' * first}", others)
        refuse_word_vectors(named)
        recipe = task_recipe(named, start, list(values), of_objective)
        refuse_unread_in_task([recipe], given)
        return recipe

    place = folder_at(out, RUNS / ("glue-v1" if first else "glue"))
    return finetune_glue(recipe_of, start, folder, place, seeds=seeds, grid_budget=grid_budget, progress=not quiet)


def predict(
    model: Model,
    file: Annotated[PathLike, Option("FILE"), SOURCES] | None = None,
    out: File | None = None,
    format: Annotated[PredictionFormat, JSON] | None = None,
    device: Device = "auto",
    precision: Precision | None = None,
    quiet: bool = False,
    overrides: OfFiles = None,
    text: Annotated[str | Sequence[str], Option("TEXT", clean, repeated=True), SOURCES] | None = None,
    also: Annotated[PathLike, Option("DIR")] | None = None,
) -> Predictions:
    """Predict with a fine-tuned model for a file of records, or for a text.

    Args:
        model: Directory of a fine-tuning run or one of its checkpoints; in Python also a loaded model.
        file: Records, with or without labels.
        out: File to write. Lines generated for a .jsonl are kept in OUT.part until all are done; the same command resumes
            an interrupted one from there.
        format: Output format: jsonl, one JSON object per line; json, for the official scripts of SQuAD and CoQA; glue, a
            table for GLUE's server. Default: by the file's ending, .jsonl, .json or .tsv; printed as jsonl.
        device: Where to compute: cpu, cuda, cuda:N, xpu, mps, or auto (CUDA if it is there); in Python a loaded model
            stays where it is.
        precision: Precision of the forward passes; auto is bf16 where it is faster (default: fp32, but texts are generated
            with the recipe's `decoding.precision`). Fine-tuning evaluates in its training precision.
        quiet: Show no progress.
        overrides: Settings `task.fields` and `task.format` of the file, by dotted name.
        text: Text instead of a file, split into words for a tagger; repeat it for each part of a record that has several,
            such as a passage and a question.
        also: Directory of another fine-tuning run on the same task, whose probabilities or quantities are averaged with those
            of `model` (ULMFiT: a forward and a backward model).

    Returns:
        One per record, in order.

    Examples:
        unicloze predict --model runs/classification --file test.jsonl --out predictions.jsonl
        unicloze predict --model runs/classification --text "A text to classify."

    Raises:
        UsageError: Neither or both of `file` and `text` are given, the model is not fine-tuned, there is no such device, the
            ending of `out` names no format, or predictions do not fit the format.
        UniclozeError: There is no complete checkpoint, or a record is invalid.
        OSError: The file cannot be written.
    """
    from unicloze.finetuning import predict as predicting
    from unicloze.finetuning.data import encoded
    from unicloze.finetuning.generate import generate_into, predict_given, with_settings
    from unicloze.finetuning.scores import averaged, check_averaged
    from unicloze.interop.read import open_model
    from unicloze.tasks import TASKS
    from unicloze.tasks.task import Prediction, Predictions, written

    check_one_given(text, file, "of records to predict")
    check_file(out, file)
    chosen = predicting.format_of(out if out is None else Path(out), format)
    for one in () if out is None else (out, predicting.beside(Path(out))) if chosen == "json" else (out,):
        check_file(one, file, begins=predicting.BEGINNINGS[chosen])
    shown = predicting.PREDICTION_FORMATS[chosen] if out is None else partial(written, out, "predictions")
    check_fixed(overrides, OF_FILES)
    if text is not None:
        _refuse_of_files(overrides)
    models = [with_settings(open_model(one, device, precision), overrides) for one in (model, also) if one is not None]
    loaded = models[0]
    predicting.check_fine_tuned(loaded)
    records = _records(loaded, text, file)
    predicting.check_format(chosen, loaded.recipe, records)
    if also is not None:
        check_averaged([one.recipe for one in models])
    if out is not None and chosen == "jsonl" and TASKS[loaded.recipe.task.kind].generates:
        return Predictions(generate_into(Path(out), loaded, records, None, progress=not quiet), shown)

    def predicted(one: LoadedModel) -> list[Prediction]:
        if text is not None:
            return predict_given(one, records)
        data = encoded(records, one.recipe, one.tokenizer, answers=False)
        return predicting.predict(one, data, progress=not quiet)

    each = [predicted(one) for one in models]
    predictions = each[0] if also is None else averaged(each)
    if out is not None:
        predicting.write_predictions(predictions, Path(out), chosen)
    return Predictions(predictions, shown, one=text is not None)


def _records(model: LoadedModel, text: str | Sequence[str] | None, file: PathLike | None) -> list[Record]:
    """The record of a text that is given, or those of a file."""
    from unicloze.finetuning.generate import record_of
    from unicloze.tasks.several import records_of

    return [record_of(model, text)] if text is not None else records_of(Path(file or ""), model.recipe.task, dev=True)


def generate(
    model: Model,
    text: Annotated[str | Sequence[str], Option("TEXT", clean, repeated=True), SOURCES] | None = None,
    file: Annotated[PathLike, Option("FILE"), SOURCES] | None = None,
    out: File | None = None,
    into: Annotated[str, Option("FIELD")] | None = None,
    device: Device = "auto",
    quiet: bool = False,
    overrides: Annotated[
        Overrides | None,
        Settings(
            ("decoding.beams", "decoding.max_length", "decoding.min_length", "decoding.length_penalty",
             "decoding.no_repeat_ngram", "decoding.sample", "decoding.temperature", "decoding.top_k", "decoding.top_p",
             "decoding.num_results", "decoding.parallel", "decoding.seed", "decoding.precision", "task.fields"),
        ),
    ] = None,
) -> Predictions:  # fmt: skip
    """Generate texts from sources with a fine-tuned model, or continue prompts.

    Args:
        model: Run directory, one of its checkpoints, or a Hugging Face model folder; in Python also a loaded model.
        text: Source, or a prompt for a model without sources; repeat it for each part of a source that has several
            (generation.source), such as a passage and an answer.
        file: File of sources: .jsonl, .tsv, .csv, or .txt (one per line), also .gz.
        out: File to write, one JSON object per line. Lines are kept in OUT.part until all are done; the same command
            resumes an interrupted one from there.
        into: Write the input records with the generated text in this field.
        device: As of `predict`.
        quiet: Show no progress.
        overrides: Settings of `decoding`, and `task.fields` and `task.format` of the file, by dotted name.

    Returns:
        One per source, in order: `id`, `prediction`, and `candidates` if there are several.

    Examples:
        unicloze generate --model runs/quickstart --text "Return a copy of the" --decoding.beams 5
        unicloze generate --model runs/quickstart --text "If the" --stream --decoding.sample true --decoding.top_p 0.9
        unicloze generate --model runs/quickstart --file sentences.txt --out generated.jsonl
        unicloze generate --model runs/quickstart --file sentences.txt --into continued --out continued.jsonl

    Raises:
        UsageError: Neither or both of `text` and `file` are given, there is no such device, the model cannot generate, a
            setting would have no effect, or `into` is given and `decoding.num_results` is above 1.
        UniclozeError: There is no complete checkpoint, or a record is invalid.
    """
    from unicloze.finetuning.generate import as_text, generate_for_records, generate_into, with_field
    from unicloze.finetuning.predict import as_json_lines
    from unicloze.tasks.task import Predictions, written

    check_one_given(text, file, "of sources to generate from")
    field = re.escape(json.dumps(into or "prediction", ensure_ascii=False)).encode()
    check_file(out, file, begins=[rb"\{[^\n]*" + field + b":"])
    loaded = _generator(model, device, overrides, of_a_file=file is not None)
    several = loaded.recipe.decoding.num_results
    if into is not None and several > 1:
        raise UsageError(f"decoding.num_results is {several}, but into writes one text per record: leave one out.")
    records = _records(loaded, text, file)
    progress, one = file is not None and not quiet, text is not None and into is None
    if out is not None:
        made = generate_into(Path(out), loaded, records, into, progress=progress)
        return Predictions(made, partial(written, out, "texts"), one=one)
    parts = generate_for_records(loaded, records, progress=progress)
    made = with_field(records, [one for some in parts for one in some], into)
    return Predictions(made, as_text if one else as_json_lines, one=one)


def stream(
    model: Model,
    text: str | Sequence[str],
    device: Device = "auto",
    overrides: Annotated[Overrides | None, Settings()] = None,
) -> Iterator[str]:
    """Stream the text of a single source piece by piece, each as soon as it is final.

    Args:
        model: As of `generate`.
        text: As of `generate`.
        device: As of `predict`.
        overrides: Settings of `decoding` by dotted name.

    Raises:
        UsageError: As for `generate`, or `decoding.num_results` is above 1.
    """
    from unicloze.decoding.generate import stream_text
    from unicloze.finetuning.generate import parts_for_records, record_of

    loaded = _generator(model, device, overrides, of_a_file=False)
    if (several := loaded.recipe.decoding.num_results) > 1:
        raise UsageError(f"num_results is {several}, but only one text can be streamed: set it to 1, or do not stream.")
    pieces = stream_text(parts_for_records(loaded, [record_of(loaded, text)]), loaded.tokenizer)
    return (piece for piece in pieces if piece)


def unanswerable(
    file: File, out: File, share: Annotated[float, Option("X")] = 0.8, seed: Number = 0, overrides: OfFiles = None
) -> Written:
    """Add unanswerable questions to a file of questions, to train extraction on both.

    Each pairs a question with another passage of its article that does not contain its answer. UniLM v1 (Section 3.3)
    trains on four such questions for every five with an answer.

    Args:
        file: Records with context, question and answers, as written by `generate --into question`.
        out: Output file for both kinds of questions, a .jsonl.
        share: Unanswerable questions per answerable one.
        seed: Seed of the draws.
        overrides: Settings `task.fields` and `task.format` of the file, by dotted name.

    Returns:
        Numbers of records written and left out: those without a question, or without an answer in their passage.

    Examples:
        unicloze unanswerable --file made.jsonl --out made-train.jsonl

    Raises:
        UsageError: The share or the seed is out of range, `out` is not a .jsonl, or its folder does not exist.
        UniclozeError: A record is invalid; the message names its line.
    """
    from unicloze.recipes import load_recipe
    from unicloze.tasks import TASKS
    from unicloze.tasks.columns import check_fields
    from unicloze.tasks.unanswerable import write_training_records

    if not 0 <= share <= 1:
        raise UsageError(f"share is {share}: give a number from 0 to 1.")
    check_seed(seed)
    if Path(out).suffix != ".jsonl":
        raise UsageError(f"{out}: the output is JSON lines; give a name that ends in .jsonl.")
    check_fixed(overrides, OF_FILES)
    check_file(out, file, begins=[rb'\{"id": [^\n]*"title": [^\n]*"context": '])
    recipe = load_recipe("squad-v2-generated", overrides)
    check_fields(recipe, TASKS[recipe.task.kind], ("title", "answer"))
    return write_training_records(Path(file), Path(out), share=share, seed=seed, settings=recipe.task)


def _generator(
    model: PathLike | LoadedModel, device: str, overrides: Overrides | None, *, of_a_file: bool
) -> LoadedModel:
    from unicloze.finetuning.generate import ready_to_write
    from unicloze.interop.read import open_model

    check_fixed(overrides, ("decoding", *OF_FILES))
    if not of_a_file:
        _refuse_of_files(overrides)
    return ready_to_write(open_model(model, device), overrides)


def _refuse_of_files(overrides: Overrides | None) -> None:
    """Reject settings of a file if a text is given."""
    from unicloze.recipes.validation import given_settings

    given = given_settings(overrides)
    if strange := next((key for key in OF_FILES if key in given), None):
        raise UsageError(f"{strange} applies to a file, but a text is given: leave it out.")

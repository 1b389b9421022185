"""Fine-tuning a trained model on a task, and using what comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from unicloze.errors import UsageError
from unicloze.verbs.common import RUNS, Overrides, PathLike, opening

if TYPE_CHECKING:
    from unicloze.finetuning.seeds import FinetuneSummary
    from unicloze.tasks.task import Prediction
    from unicloze.training.models import LoadedModel


def finetune(
    task: PathLike,
    model: PathLike | LoadedModel,
    train: PathLike,
    dev: PathLike | None = None,
    out: PathLike | None = None,
    seeds: int = 1,
    quiet: bool = False,
    overrides: Overrides | None = None,
) -> FinetuneSummary:
    """Fine-tune a trained model on labelled records, or go on with the run that the directory holds.

    Args:
        task: Name or file of a recipe of a task.
        model: A run directory, a checkpoint, a folder of another library's, or a loaded model to start from.
        train: Records to train on.
        dev: Records to evaluate on; they choose the checkpoint that is kept.
        out: The run's directory; `runs/NAME` if not given.
        seeds: Number of runs, with seeds of their own.
        quiet: Show no progress.
        overrides: Settings by dotted name.

    Raises:
        UsageError: The task or a setting cannot be, or the directory holds a run with other settings.
        UniclozeError: A record, the model or the directory cannot be used, or the loss is not finite.
    """
    from unicloze.recipes import load_recipe
    from unicloze.training.allocator import tune_allocator

    if seeds < 1:
        raise UsageError(f"seeds is {seeds}: give 1 or more.")
    recipe = load_recipe(task, overrides)
    tune_allocator()
    from unicloze.decoding.texts import open_model
    from unicloze.finetuning.run import task_recipe
    from unicloze.finetuning.seeds import finetune_seeds

    start = open_model(opening(model))
    recipe = task_recipe(recipe, start, list(overrides or {}))
    folder = RUNS / recipe.name if out is None else Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    return finetune_seeds(
        recipe, start, Path(train), None if dev is None else Path(dev), folder, seeds=seeds, progress=not quiet
    )


def predict(
    model: PathLike | LoadedModel,
    file: PathLike,
    out: PathLike | None = None,
    format: str | None = None,
    quiet: bool = False,
) -> list[Prediction]:
    """Predictions of a fine-tuned model for a file of records.

    Args:
        model: Directory of a fine-tuning run, one of its checkpoints, or a loaded model.
        file: Records; they need no labels.
        out: Write the predictions into this file too.
        format: How: `jsonl`, a JSON object a line, `json`, as the official scripts of SQuAD and CoQA read them, or `glue`, as
            the benchmark's server does; if not given, `json` where the file's name ends so, else `jsonl`.
        quiet: Show no progress.

    Returns:
        One for each record, in their order.

    Raises:
        UsageError: The model is not fine-tuned, there is no such format, or predictions do not fit it.
        UniclozeError: There is no whole checkpoint, or a record cannot be used.
    """
    from unicloze.decoding.texts import open_model
    from unicloze.finetuning import predict as room
    from unicloze.finetuning.data import open_records
    from unicloze.finetuning.run import load_task_model

    by_name = "json" if out is not None and Path(out).suffix == ".json" else "jsonl"
    chosen = by_name if format is None else format
    if chosen not in room.PREDICTION_FORMATS:
        raise UsageError(f"format is {format!r}: give one of {', '.join(room.PREDICTION_FORMATS)}.")
    if out is not None and (Path(out).is_dir() or not Path(out).parent.is_dir()):
        raise UsageError(
            f"{out} is a folder, or in a folder that is not there: give a file to write the predictions to"
        )
    task_model = load_task_model(open_model(opening(model)))
    data = open_records(Path(file), task_model.recipe, task_model.tokenizer)
    predictions = room.predict(task_model, data, progress=not quiet)
    if out is not None:
        room.write_predictions(predictions, Path(out), chosen)
    return predictions

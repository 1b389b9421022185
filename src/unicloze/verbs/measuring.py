"""The verbs that evaluate models on benchmarks and score predictions by metrics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from unicloze.settings import Mode, Precision
from unicloze.verbs.options import (
    OF_FILES,
    Device,
    File,
    Model,
    NamedValues,
    Number,
    OfFiles,
    Option,
    PathLike,
    check_fixed,
    opened,
)

if TYPE_CHECKING:
    from unicloze.evaluation.blimp import BlimpResult
    from unicloze.evaluation.metrics.registry import MetricTable
    from unicloze.evaluation.metrics.result import MetricResult
    from unicloze.evaluation.missing_words import LambadaResult
    from unicloze.evaluation.prompting import PromptResult
    from unicloze.finetuning.scores import TaskScores

References = Annotated[PathLike | Sequence[PathLike], Option("FILE", several=True)]


def evaluate_blimp(
    model: Model,
    pairs: Annotated[PathLike, Option("PATH", word=True)],
    mode: Mode | None = None,
    limit: Number | None = None,
    filter: Annotated[PathLike, Option("FILE|corpus")] | None = None,
    device: Device = "auto",
    precision: Precision | None = None,
    quiet: bool = False,
) -> BlimpResult:
    """Evaluate a model on BLiMP: which sentence of a pair is grammatical.

    See `unicloze.evaluation.blimp.blimp`.

    Args:
        model: Run directory, one of its checkpoints, or a Hugging Face model folder; in Python also a loaded model.
        pairs: BLiMP's .jsonl files: a folder, an archive or a single file.
        mode: Compare sentences by pseudo-log-likelihood or by the chain rule; default: pseudo if the model
            defines it, else chain.
        limit: Use only the first N pairs of each set.
        filter: Keep only pairs of known words: those in a list (one per line), or those that occur at least twice in the
            model's training corpus.
        device: Where to compute: cpu, cuda, cuda:N, xpu, mps, or auto (CUDA if it is there); in Python a loaded model
            stays where it is.
        precision: Precision of the forward passes; auto is bf16 where it is faster (default: fp32).
        quiet: Show no progress.

    Examples:
        unicloze evaluate blimp blimp.tar.gz --model runs/quickstart --limit 20
        unicloze evaluate blimp blimp --model runs/quickstart --mode both --filter words.txt --json
        unicloze evaluate blimp blimp --model runs/quickstart --filter corpus

    Raises:
        UsageError: The model's objective does not define the mode, or there is no such device.
        UniclozeError: There is no complete checkpoint, or the pairs are invalid.
    """
    from unicloze.evaluation.blimp import blimp

    return blimp(opened(model, device, precision), pairs, mode=mode, limit=limit, filter_by=filter, progress=not quiet)


def evaluate_lambada(
    model: Model,
    passages: Annotated[PathLike, Option("FILE", word=True)],
    stop_words: Annotated[PathLike, Option("FILE|english")] | None = None,
    limit: Number | None = None,
    device: Device = "auto",
    precision: Precision | None = None,
    quiet: bool = False,
) -> LambadaResult:
    """Evaluate a model on LAMBADA: accuracy and perplexity of the last word of a passage.

    See `unicloze.evaluation.missing_words.lambada`.

    Args:
        model: As of `evaluate_blimp`.
        passages: File of LAMBADA passages.
        stop_words: Words that cannot be the answer: a list (one per line), or english.
        limit: Use only the first N passages.
        device: As of `evaluate_blimp`.
        precision: As of `evaluate_blimp`.
        quiet: Show no progress.

    Examples:
        unicloze evaluate lambada lambada.jsonl --model runs/quickstart --stop-words english

    Raises:
        UsageError: The model's objective cannot predict a last word, or there is no such device.
        UniclozeError: There is no complete checkpoint, or the passages are invalid.
    """
    from unicloze.evaluation.missing_words import lambada

    return lambada(opened(model, device, precision), passages, stop_words=stop_words, limit=limit, progress=not quiet)


def evaluate_cbt(
    model: Model,
    questions: Annotated[PathLike, Option("FILE", word=True)],
    limit: Number | None = None,
    device: Device = "auto",
    precision: Precision | None = None,
    quiet: bool = False,
) -> PromptResult:
    """Evaluate a model on the Children's Book Test: which of ten words is missing.

    See `unicloze.evaluation.missing_words.childrens_books`.

    Args:
        model: As of `evaluate_blimp`.
        questions: A file of the Children's Book Test.
        limit: Use only the first N questions.
        device: As of `evaluate_blimp`.
        precision: As of `evaluate_blimp`.
        quiet: Show no progress.

    Examples:
        unicloze evaluate cbt questions.txt --model runs/quickstart

    Raises:
        UsageError: There is no such device.
        UniclozeError: There is no complete checkpoint, or the questions are invalid.
    """
    from unicloze.evaluation.missing_words import childrens_books

    return childrens_books(opened(model, device, precision), questions, limit=limit, progress=not quiet)


def evaluate_prompt(
    model: Model,
    prompt: Annotated[PathLike, Option("FILE", word=True)],
    records: File,
    examples: File | None = None,
    shots: Annotated[int, Option("K")] = 0,
    seed: Number = 0,
    limit: Number | None = None,
    device: Device = "auto",
    precision: Precision | None = None,
    quiet: bool = False,
) -> PromptResult:
    """Evaluate a model on labelled records by prompting, without training it.

    See `unicloze.evaluation.prompting.prompted`.

    Args:
        model: As of `evaluate_blimp`.
        prompt: Prompt file in YAML or JSON: how a record becomes a prompt.
        records: Records to prompt with: .jsonl, .tsv or .csv, also .gz.
        examples: Labelled records to draw each prompt's examples from.
        shots: Number of examples in each prompt.
        seed: Seed of the draws of examples.
        limit: Use only the first N records.
        device: As of `evaluate_blimp`.
        precision: Precision of the forward passes; auto is bf16 where it is faster (default: fp32). Where the prompt file's
            `generate` names a precision, texts are generated in that one.
        quiet: Show no progress.

    Examples:
        unicloze evaluate prompt lengths.yaml --model runs/quickstart --records dev.jsonl --examples train.jsonl --shots 2

    Raises:
        UsageError: The prompt file does not suit the model, or there is no such device.
        UniclozeError: There is no complete checkpoint, or a file is invalid.
    """
    from unicloze.evaluation.prompting import prompted

    loaded, progress = opened(model, device, precision), not quiet
    return prompted(loaded, prompt, records, examples=examples, shots=shots, seed=seed, limit=limit, progress=progress)


def measure(
    metric: Annotated[str, Option("METRIC", word=True)],
    predictions: File,
    references: References = (),
    na_probabilities: File | None = None,
    options: NamedValues | None = None,
) -> MetricResult:
    """Compare predictions with references by a metric: ROUGE, BLEU, SQuAD's F1, accuracy and others.

    See `unicloze.evaluation.metrics.files`.

    Args:
        metric: Name of the metric; `unicloze metrics` lists them.
        predictions: Predictions: .txt, .tsv, .jsonl or .json, also .gz.
        references: References; several files if each prediction has several references; diversity needs none.
        na_probabilities: For squad: the model's probability that there is no answer, {id: number}.
        options: Setting of the metric, such as profile=cnndm, tokenize=none or positive=yes; may be repeated.

    Examples:
        unicloze measure rouge --predictions summaries.txt --references gold.txt --option profile=xsum
        unicloze measure squad --predictions answers.json --references dev-v2.0.json --json

    Raises:
        UsageError: There is no such metric or option, or references are missing.
        UniclozeError: The files do not match, or an optional package is missing.
    """
    from unicloze.evaluation.metrics.files import read_pairs
    from unicloze.evaluation.metrics.registry import metric as named

    chosen, found = named(metric), Path(predictions)
    files = [Path(file) for file in ([references] if isinstance(references, str | Path) else references)]
    scores = None if na_probabilities is None else Path(na_probabilities)
    alone = not chosen.needs_references
    return chosen(*read_pairs(found, files, chosen.compares, na_probabilities=scores, alone=alone), **(options or {}))


def measure_task(
    task: Annotated[PathLike, Option("TASK", word=True)],
    predictions: File,
    references: File,
    metric: Annotated[str, Option("NAME")] | None = None,
    options: NamedValues | None = None,
    overrides: OfFiles = None,
) -> TaskScores:
    """Compare predictions with a task's labelled records by its metrics, with standard errors.

    Args:
        task: Task recipe by name or file, or the directory of a fine-tuning run.
        predictions: Predictions, as `predict` writes them.
        references: Labelled records of the task.
        metric: A single metric in place of the task's; the task's metric options apply.
        options: Setting of the metrics, such as profile=cnndm or positive=yes; may be repeated.
        overrides: Settings `task.fields` and `task.format` of the records, by dotted name.

    Examples:
        unicloze measure-task classification --predictions predictions.jsonl --references test.tsv

    Raises:
        UsageError: There is no such task, metric or option.
        UniclozeError: The files do not match.
    """
    from unicloze.finetuning.scores import measure_file
    from unicloze.recipes import load_recipe
    from unicloze.recipes.validation import given_settings
    from unicloze.tasks import TASKS
    from unicloze.tasks.columns import check_fields

    check_fixed(overrides, OF_FILES)
    recipe = load_recipe(task, overrides)
    if "task.fields" in given_settings(overrides):
        check_fields(recipe, TASKS.get(recipe.task.kind))
    return measure_file(Path(predictions), Path(references), recipe, metric, options or {})


def metrics() -> MetricTable:
    """List the metrics: what they compare, their options, and what they need.

    Examples:
        unicloze metrics
        unicloze metrics --json
    """
    from unicloze.evaluation.metrics.registry import METRICS, MetricTable

    return MetricTable(METRICS)

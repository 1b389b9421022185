"""Using a trained model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from unicloze.errors import UniclozeError, UsageError
from unicloze.settings import Mode, Order, Pooling, Precision
from unicloze.verbs.common import OF_FILES, Overrides, PathLike, check_fixed, opening
from unicloze.verbs.options import Device, File, Model, NamedValues, Number, OfFiles, OneOf, Option, clean

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from unicloze.decoding.infill import FillResult
    from unicloze.decoding.likelihood import Scores
    from unicloze.evaluation.blimp import BlimpResult
    from unicloze.evaluation.choices import PromptResult
    from unicloze.evaluation.lambada import LambadaResult
    from unicloze.evaluation.metrics.registry import MetricTable
    from unicloze.evaluation.metrics.result import MetricResult
    from unicloze.finetuning.scores import TaskScores

TEXTS = OneOf("texts", required=True)


def fill(
    model: Model,
    text: Annotated[str, Option("TEXT", clean)],
    top_k: Annotated[int, Option("K")] = 5,
    order: Order | None = None,
    device: Device = "auto",
) -> FillResult:
    """Fill the [MASK]s of a text: candidates for each at once, or one after the other in an order.

    See `unicloze.decoding.infill.fill`.

    Args:
        model: Directory of a run, one of its checkpoints, or a folder of another library's; in Python also a loaded model.
        text: Text with "[MASK]" where a token is missing.
        top_k: Candidates to list for each mask.
        order: Fill one mask after the other by PAR in this order; all at once by AE if not given.
        device: Where to compute: cpu, cuda, cuda:N, or auto, a CUDA device where there is one; in Python a loaded model
            stays where it is.

    Examples:
        unicloze fill --model runs/quickstart --text "Return a [MASK] of the given list."
        unicloze fill --model runs/quickstart --text "If the [MASK] does not [MASK], an error is raised."
            --order confidence --json

    Raises:
        UsageError: There is nothing to fill, the model was not trained for the order, or there is no such device.
        UniclozeError: There is no whole checkpoint.
    """
    from unicloze.decoding import infill

    if not isinstance(text, str):
        raise UsageError(f"text is of type {type(text).__name__}: give one text to fill, a string.")
    return infill.fill(opening(model, device), text, top_k=top_k, order=order)


def score(
    model: Model,
    text: Annotated[str | Sequence[str], Option("TEXT", clean), TEXTS] | None = None,
    file: Annotated[PathLike, Option("FILE"), TEXTS] | None = None,
    device: Device = "auto",
) -> Scores:
    """Log-likelihood of a text by the chain rule of its steps, and its pseudo-log-likelihood.

    See `unicloze.decoding.likelihood.score`.

    Args:
        model: Directory of a run, one of its checkpoints, or a folder of another library's; in Python also a loaded model.
        text: Text to score; in Python also several.
        file: Texts: .txt with one a line, .jsonl, .parquet, also .gz, .zst.
        device: Where to compute: cpu, cuda, cuda:N, or auto, a CUDA device where there is one; in Python a loaded model
            stays where it is.

    Examples:
        unicloze score --model runs/quickstart --text "Return a copy of the list."
        unicloze score --model runs/quickstart --file sentences.txt --json

    Raises:
        UsageError: Neither or both of `text` and `file` are given, a text is blank or no string, or there is no such
            device.
        UniclozeError: There is no whole checkpoint, or the file cannot be read.
    """
    from unicloze.decoding import likelihood

    if (text is None) == (file is None):
        raise UsageError("Give a text or a file to score, and not both.")
    texts = _texts(file) if text is None else [text] if isinstance(text, str) else list(text)
    strange = next((each for each in texts if not isinstance(each, str)), None)
    if strange is not None or not texts:
        given = "no text" if strange is None else f"something of type {type(strange).__name__}"
        raise UsageError(f"the texts to score hold {given}: give strings.")
    return likelihood.Scores(likelihood.score(opening(model, device), texts))


def _texts(file: PathLike | None) -> list[str]:
    from unicloze.text.readers import read_documents

    path = Path(file or "")
    documents = [document.text for document in read_documents(path)]
    by_line = path.name.endswith((".txt", ".txt.gz", ".txt.zst"))
    texts = [text.strip() for each in documents for text in (each.split("\n") if by_line else [each]) if text.strip()]
    if not texts:
        raise UniclozeError(f"{file} holds no text: give a file with something to score.")
    return texts


def evaluate(
    model: Model | None = None,
    blimp: Annotated[PathLike, Option("PATH")] | None = None,
    mode: Mode | None = None,
    limit: Number | None = None,
    filter: Annotated[PathLike, Option("FILE|corpus")] | None = None,
    quiet: bool = False,
    metric: Annotated[str, Option("NAME")] | None = None,
    predictions: File | None = None,
    references: Annotated[PathLike | Sequence[PathLike], Option("FILE", several=True)] = (),
    na_probabilities: File | None = None,
    options: NamedValues | None = None,
    task: Annotated[PathLike, Option("NAME|FILE|DIR")] | None = None,
    lambada: File | None = None,
    stop_words: Annotated[PathLike, Option("FILE|english")] | None = None,
    cbt: File | None = None,
    prompt: File | None = None,
    records: File | None = None,
    examples: File | None = None,
    shots: Annotated[int, Option("K")] = 0,
    seed: Number = 0,
    device: Device = "auto",
    precision: Precision | None = None,
    overrides: OfFiles = None,
) -> BlimpResult | MetricResult | MetricTable | TaskScores | LambadaResult | PromptResult:
    """A model on BLiMP, LAMBADA or by prompts, untrained; or predictions against references by a metric.

    A model is measured on BLiMP's minimal pairs, LAMBADA's last words, the Children's Book Test, or by prompts made of any
    records; see `unicloze.evaluation`. A metric compares files and needs no model; see `unicloze.evaluation.metrics`.

    Args:
        model: Directory of a run, one of its checkpoints, or a folder of another library's; in Python also a loaded model.
        blimp: Folder of BLiMP's .jsonl files, an archive of them, or one of them.
        mode: Compare sentences by their pseudo-log-likelihood or by the chain rule; if not given, pseudo where the model
            defines it, else chain.
        limit: Take only the first N pairs of each set, passages, questions or records.
        filter: Keep only pairs of known words: of a list, one a line, or those that occur twice or more in the corpus the
            model was trained on.
        quiet: Show no progress.
        metric: Compare predictions with references; `list` lists the metrics. Those of the task if not given.
        predictions: Predictions: .txt, .tsv, .jsonl or .json, also .gz.
        references: References, or several files where each prediction has several; diversity needs none.
        na_probabilities: For squad: how sure the model is that there is no answer, {id: number}.
        options: Setting of the metric, such as profile=cnndm, tokenize=none or positive=yes; may be given again.
        task: Compare predictions, as `predict` writes them, with the labelled records of a task: its recipe, or a
            fine-tuning run; the metric has the task's options.
        lambada: LAMBADA's passages: accuracy and perplexity of the last word.
        stop_words: For `--lambada`: words that cannot be the last, one a line.
        cbt: File of the Children's Book Test: which word is missing.
        prompt: Prompt file in YAML or JSON: how a record becomes a prompt.
        records: For `--prompt`: .jsonl, .tsv or .csv, also .gz.
        examples: For `--prompt`: labelled records to draw examples from.
        shots: Examples in each prompt.
        seed: Names the draws of examples.
        device: Where to compute: cpu, cuda, cuda:N, or auto, a CUDA device where there is one; in Python a loaded model
            stays where it is.
        precision: Of the forward passes; auto is bf16 where it is faster. If not given fp32. Texts that a prompt file lets
            the model write are written in that of its `generate`, where it names one.
        overrides: Settings `task.fields` and `task.format` of the records of a task, by dotted name.

    Examples:
        unicloze evaluate --model runs/quickstart --blimp blimp.tar.gz --limit 20
        unicloze evaluate --model runs/quickstart --blimp blimp --mode both --filter words.txt --json
        unicloze evaluate --model runs/quickstart --blimp blimp --filter corpus
        unicloze evaluate --model runs/quickstart --lambada lambada.jsonl --stop-words english
        unicloze evaluate --model runs/quickstart --prompt lengths.yaml --records dev.jsonl --examples train.jsonl
            --shots 2
        unicloze evaluate --metric list
        unicloze evaluate --metric rouge --predictions summaries.txt --references gold.txt --option profile=xsum
        unicloze evaluate --metric squad --predictions answers.json --references dev-v2.0.json --json
        unicloze evaluate --task classification --predictions predictions.jsonl --references test.tsv

    Raises:
        UsageError: The model's objective does not define the mode, there is no such metric, option or device, or an
            argument is missing or of the other use.
        UniclozeError: There is no whole checkpoint, a file cannot be read, files do not match, or an extra is absent.
    """
    if metric == "list":
        from unicloze.evaluation.metrics.registry import METRICS, MetricTable

        return MetricTable(METRICS)
    asked: dict[str, dict[str, Any]] = {
        "blimp": {"mode": mode, "filter": filter},
        "lambada": {"stop-words": stop_words},
        "cbt": {},
        "prompt": {"records": records, "examples": examples, "shots": shots or None, "seed": seed or None},
    }
    if overrides and task is None:
        raise UsageError(f"{next(iter(overrides))} goes with a task: name one, or leave it out.")
    check_fixed(overrides, OF_FILES)
    if metric is not None or task is not None:
        others = {"model": model, "limit": limit, "blimp": blimp, "lambada": lambada, "cbt": cbt, "prompt": prompt}
        others |= {"device": None if device == "auto" else device, "precision": precision}
        others |= {option: value for options_of in asked.values() for option, value in options_of.items()}
        strange = next((option for option, value in others.items() if value is not None), None)
        if strange is not None:
            raise UsageError(f"A metric compares files: leave out {strange}.")
        if task is not None:
            return _measure_task(task, metric, predictions, references, na_probabilities, options or {}, overrides)
        return _measure(metric or "", predictions, references, na_probabilities, options or {})
    if predictions is not None or references or na_probabilities is not None or options:
        raise UsageError("Predictions and references need a metric or a task: name one.")
    named = [name for name, path in zip(asked, (blimp, lambada, cbt, prompt), strict=True) if path is not None]
    if model is None or len(named) != 1:
        raise UsageError(
            f"Give a model and one of {', '.join(asked)}, or a metric or a task with predictions and references."
        )
    for other in asked.keys() - set(named):
        strange = next((option for option, value in asked[other].items() if value is not None), None)
        if strange is not None:
            raise UsageError(f"{strange} goes with {other}, not with {named[0]}: leave it out.")
    from unicloze.training.allocator import tune_allocator

    tune_allocator()
    opened = opening(model, device, precision)
    if lambada is not None:
        from unicloze.evaluation import lambada as last_words

        return last_words.lambada(opened, lambada, stop_words=stop_words, limit=limit, progress=not quiet)
    if cbt is not None:
        from unicloze.evaluation.childrens_books import childrens_books

        return childrens_books(opened, cbt, limit=limit, progress=not quiet)
    if prompt is not None:
        if records is None:
            raise UsageError("A prompt needs records: name their file.")
        from unicloze.evaluation.prompting import prompted

        return prompted(
            opened, prompt, records, examples=examples, shots=shots, seed=seed, limit=limit, progress=not quiet
        )
    from unicloze.evaluation import blimp as room

    return room.blimp(opened, blimp or "", mode=mode, limit=limit, filter_by=filter, progress=not quiet)


def _measure(
    name: str,
    predictions: PathLike | None,
    references: PathLike | Sequence[PathLike],
    na_probabilities: PathLike | None,
    options: Mapping[str, str],
) -> MetricResult:
    from unicloze.evaluation.metrics.read_files import read_pairs, read_predictions
    from unicloze.evaluation.metrics.registry import metric

    chosen = metric(name)
    files = [references] if isinstance(references, str | Path) else references
    if predictions is None:
        raise UsageError(f"The metric {name} needs predictions: name their file.")
    if not files and not chosen.needs_references:
        if na_probabilities is not None:
            raise UsageError("Only the metric squad takes certainties that there is no answer: leave them out.")
        return chosen(read_predictions(Path(predictions)), [], **options)
    certainties = None if na_probabilities is None else Path(na_probabilities)
    found, wanted = read_pairs(
        Path(predictions), [Path(file) for file in files], chosen.compares, na_probabilities=certainties
    )
    return chosen(found, wanted, **options)


def _measure_task(
    task: PathLike,
    name: str | None,
    predictions: PathLike | None,
    references: PathLike | Sequence[PathLike],
    na_probabilities: PathLike | None,
    options: Mapping[str, str],
    overrides: Overrides | None,
) -> TaskScores:
    from unicloze.finetuning.scores import measure_file
    from unicloze.recipes import load_recipe
    from unicloze.recipes.rules_unread import given_settings
    from unicloze.tasks import check_roles
    from unicloze.training.process import RECIPE

    files = [references] if isinstance(references, str | Path) else list(references)
    if predictions is None or len(files) != 1 or na_probabilities is not None:
        raise UsageError("A task compares one file of predictions with one of its records: give these and no other.")
    recipe = load_recipe(Path(task) / RECIPE if Path(task).is_dir() else task, overrides)
    if "task.fields" in given_settings(overrides):
        check_roles(recipe)
    return measure_file(Path(predictions), Path(files[0]), recipe, name, options)


def embed(
    model: Model,
    texts: Sequence[str],
    pooling: Pooling | None = None,
    batch_size: int = 32,
    device: str = "auto",
    precision: Precision | None = None,
) -> npt.NDArray[np.float32]:
    """Vectors of texts; see `unicloze.decoding.embed.embed`. No verb of the command line.

    Args:
        model: A run directory, a checkpoint, a folder of another library's, or a loaded model.
        texts: The texts.
        pooling: `mean` of the last hidden states, or that of the `first` or `last` token; the recipe's if not given.
        batch_size: Most rows of one forward pass.
        device: Where to compute: cpu, cuda, cuda:N, or auto, a CUDA device where there is one; in Python a loaded model
            stays where it is.
        precision: `fp32`, `bf16`, or `auto`: bf16 where it is faster. `fp32` if not given.

    Returns:
        *Shape:* (texts, hidden size)

    Raises:
        UsageError: A text is blank, or there is no such device.
        UniclozeError: There is no whole checkpoint.
    """
    from unicloze.decoding import embed as room

    return room.embed(opening(model, device, precision), texts, pooling=pooling, batch_size=batch_size)

"""Fine-tunes on every GLUE task in a folder: the score, and the files for the benchmark's server."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unicloze import keyed
from unicloze.errors import UniclozeError
from unicloze.evaluation.metrics.labels import GLUE
from unicloze.evaluation.metrics.result import MetricResult
from unicloze.evaluation.metrics.standard_errors import binomial_error
from unicloze.files import replace_file
from unicloze.finetuning.data import encoded, open_records
from unicloze.finetuning.predict import load_task_model, predict, write_predictions
from unicloze.finetuning.run import FinetuneResult
from unicloze.finetuning.scores import measure
from unicloze.finetuning.seeds import FinetuneSummary, finetune_seeds
from unicloze.interop.read import open_model
from unicloze.records import read_records
from unicloze.settings import Recipe
from unicloze.training.loading import LoadedModel

NAMES: Mapping[str, str] = {
    "cola": "CoLA", "sst-2": "SST-2", "mrpc": "MRPC", "sts-b": "STS-B", "qqp": "QQP", "mnli": "MNLI", "qnli": "QNLI",
    "rte": "RTE", "wnli": "WNLI",
}  # fmt: skip
"""Names of the task folders and of the files for the server."""

GRID: Mapping[str, Sequence[float]] = {
    "training.batch_size": (16, 32),
    "training.learning_rate": (5e-6, 1e-5, 1.5e-5, 2e-5, 3e-5),
    "finetuning.warmup_share": (0.1, 0.2),
    "training.weight_decay": (0.01, 0.1),
    "finetuning.epochs": (10, 15),
}
"""Settings that UniLMv2 searches (Table 9)."""

_TRAIN = "train.tsv", "msr_paraphrase_train.tsv", "msr_paraphrase_train.txt", "sts-train.csv"
_DEV = "dev.tsv", "dev_matched.tsv", "dev_in.tsv", "sts-dev.csv"
_MISMATCHED = ("dev_mismatched.tsv",)
_TESTS: Mapping[str, tuple[str, ...]] = {
    "": ("test.tsv",),
    "-m": ("test_matched.tsv",),
    "-mm": ("test_mismatched.tsv",),
}
"""Unlabelled files, by the suffix of the file name for the server."""
_AX = "diagnostic/diagnostic.tsv", "diagnostic.tsv", "AX/AX.tsv", "AX/diagnostic.tsv"
RESULTS, LEADERBOARD, _DRAWS = "glue.json", "leaderboard", 11

RecipeOf = Callable[[str, Mapping[str, Any]], Recipe]
"""Gives the recipe of a task by name, with some settings changed."""


@dataclass(frozen=True, kw_only=True)
class GlueTaskResult:
    """Result of one task.

    Args:
        name: Name in the benchmark.
        values: Values on the development file, by name: means over the seeds of the best setting.
        score: Mean of the values.
        error: Standard error from the number of development records: the mean over the values.
        settings: The best setting's differences from the recipe.
        tried: Number of settings tried.
        out: Folder of its runs.
    """

    name: str
    values: Mapping[str, float]
    score: float
    error: float
    settings: Mapping[str, float]
    tried: int
    out: Path


@dataclass(frozen=True, kw_only=True)
class GlueSummary:
    """Result of a run over GLUE.

    Args:
        out: Its folder.
        tasks: One result for each task found.
        files: Files for the benchmark's server.
        stopped_by: Number of the signal that stopped it; 0 if none did.
    """

    out: Path
    tasks: Sequence[GlueTaskResult]
    files: Sequence[Path]
    stopped_by: int = 0

    @property
    def score(self) -> float:
        """Mean score of the tasks found."""
        return statistics.fmean(task.score for task in self.tasks) if self.tasks else math.nan

    @property
    def error(self) -> float:
        """Standard error of the score, assuming independent tasks."""
        return math.hypot(*(task.error for task in self.tasks)) / max(1, len(self.tasks))

    @property
    def exit_code(self) -> int:
        """Process exit code: 128 + the signal that stopped it, or 0."""
        return 128 + self.stopped_by if self.stopped_by else 0

    def to_dict(self) -> dict[str, Any]:
        """The fields as a JSON-serialisable dictionary."""
        return {
            "out": str(self.out),
            "score": self.score if self.tasks else None,
            "error": self.error,
            "tasks": [{**dataclasses.asdict(task), "out": str(task.out)} for task in self.tasks],
            "files": list(map(str, self.files)),
            "stopped_by": self.stopped_by,
        }

    def __str__(self) -> str:
        lines = []
        for task in self.tasks:
            values = ", ".join(f"{name} {value:.2f}" for name, value in task.values.items())
            said = ", ".join(f"{key} {value:g}" for key, value in task.settings.items())
            of = f"; best of {task.tried} settings: {said or 'those of the recipe'}" if task.tried > 1 else ""
            lines.append(f"{task.name:<6} {task.score:6.2f} (standard error {task.error:.2f}): {values}{of}")
        if self.stopped_by:
            lines.append(f"{self.out}: stopped and saved; the same command resumes from there")
        elif self.tasks:
            missing = len(NAMES) - len(self.tasks)
            without = f", {missing} of GLUE's {len(NAMES)} tasks missing" if missing else ""
            lines.append(f"score  {self.score:6.2f} (standard error {self.error:.2f}), on development files{without}")
        if self.files:
            lines.append(f"{self.out / LEADERBOARD}: {len(self.files)} files for the benchmark's server")
        return "\n".join(lines)


def finetune_glue(
    recipe_of: RecipeOf,
    start: LoadedModel,
    folder: Path,
    out: Path,
    *,
    seeds: int = 1,
    grid_budget: int = 1,
    progress: bool = True,
) -> GlueSummary:
    """Fine-tune on every GLUE task in a folder; resumes if stopped."""
    found = list(_found(folder))
    if not found:
        raise UniclozeError(
            f"{folder} holds no GLUE task: give a folder with some of the folders {', '.join(NAMES.values())}, each with "
            "train.tsv and dev.tsv"
        )
    results: list[GlueTaskResult] = []
    files: list[Path] = []
    stopped = 0
    for task, train, dev in found:
        result, run = _task(recipe_of, start, task, train, dev, out, seeds, grid_budget, progress)
        if result is None:
            stopped = run.stopped_by
            break
        results.append(result)
        files += _files_for_server(task, run, folder, out / LEADERBOARD, progress)
    summary = GlueSummary(out=out, tasks=results, files=files, stopped_by=stopped)
    replace_file(out / RESULTS, json.dumps(summary.to_dict(), indent=1))
    return summary


def grid(recipe: Recipe, budget: int) -> list[dict[str, float]]:
    """Up to `budget` settings: the recipe's own, then others of `GRID` in random order."""
    every = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]
    places = np.arange(len(every))
    order = keyed.permutation(places, len(every), keyed.key(recipe.training.seed, _DRAWS)[0])
    own = {key: getattr(getattr(recipe, key.split(".")[0]), key.split(".")[1]) for key in GRID}
    others = [every[place] for place in order if every[place] != own]
    return [{}, *others][: max(1, budget)]


def _found(folder: Path) -> Iterator[tuple[str, Path, Path]]:
    """The tasks found, with their training and development files."""
    for task, name in NAMES.items():
        place = folder / name
        if not place.is_dir():
            continue
        train, dev = _first(place, _TRAIN), _first(place, _DEV)
        if train is None or dev is None:
            lacks = "training" if train is None else "development"
            warnings.warn(f"{place} has no {lacks} file: skipping {name}", stacklevel=3)
            continue
        yield task, train, dev


def _first(folder: Path, names: Sequence[str]) -> Path | None:
    places = (folder / f"{name}{ending}" for name in names for ending in ("", ".gz"))
    return next((place for place in places if place.is_file()), None)


def _task(
    recipe_of: RecipeOf,
    start: LoadedModel,
    task: str,
    train: Path,
    dev: Path,
    out: Path,
    seeds: int,
    budget: int,
    progress: bool,
) -> tuple[GlueTaskResult | None, FinetuneResult]:
    """The result of the best setting, None if stopped by a signal, and the run of its best seed."""
    settings = grid(recipe_of(task, {}), budget)
    tried: list[tuple[dict[str, float], FinetuneSummary, Path]] = []
    for number, changes in enumerate(settings):
        place = out / NAMES[task] if len(settings) == 1 else out / NAMES[task] / f"setting-{number}"
        place.mkdir(parents=True, exist_ok=True)
        summary = finetune_seeds(recipe_of(task, changes), start, train, dev, place, seeds=seeds, progress=progress)
        if summary.runs[-1].stopped_by:
            return None, summary.runs[-1]
        tried.append((changes, summary, place))
    file = _first(dev.parent, _MISMATCHED) if task == "mnli" else None
    others = {run.out: _measured(run, file) for _, each, _ in tried for run in each.runs} if file is not None else {}

    def selecting(run: FinetuneResult) -> float:
        value = _known(run)[GLUE[task].selects]
        return statistics.fmean([value, others[run.out].values["accuracy"]]) if others else value

    changes, summary, place = max(tried, key=lambda one: statistics.fmean(map(selecting, one[1].runs)))
    best = max(summary.runs, key=selecting)
    means = {name: _mean([_values(task, run)[name] for run in summary.runs]) for name in GLUE[task].values}
    known = {name: error for result in best.scores.values() for name, error in result.errors.items()}
    errors = {name: known.get(name, 0.0) for name in GLUE[task].values}
    if others:
        each = [others[run.out] for run in summary.runs]
        means["mismatched"] = _mean([one.values["accuracy"] for one in each])
        errors["mismatched"] = binomial_error(means["mismatched"], each[0].items)
    result = GlueTaskResult(
        name=NAMES[task],
        values=means,
        score=_mean(list(means.values())),
        error=_mean(list(errors.values())),
        settings=changes,
        tried=len(tried),
        out=place,
    )
    return result, best


def _measured(run: FinetuneResult, file: Path) -> MetricResult:
    """Accuracy of the best checkpoint of a run on another file."""
    loaded = open_model(run.out)
    data = open_records(file, loaded.recipe, loaded.tokenizer)
    said = predict(load_task_model(loaded), data)
    return measure(said, data.records, loaded.recipe)["accuracy"]


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def _values(task: str, run: FinetuneResult) -> dict[str, float]:
    """The values of one run that the benchmark averages."""
    return {name: _known(run)[name] for name in GLUE[task].values}


def _known(run: FinetuneResult) -> dict[str, float]:
    return {name: value for result in run.scores.values() for name, value in result.values.items()}


def _files_for_server(task: str, run: FinetuneResult, folder: Path, out: Path, progress: bool) -> list[Path]:
    """Write predictions for the unlabelled files, and with MNLI also for the diagnostic set."""
    place, written = folder / NAMES[task], []
    tests = {f"{NAMES[task]}{ending}": _first(place, names) for ending, names in _TESTS.items()}
    if task == "mnli":
        tests["AX"] = _first(folder, _AX)
    asked = {name: file for name, file in tests.items() if file is not None}
    if not asked:
        return []
    out.mkdir(parents=True, exist_ok=True)
    loaded = open_model(run.out)
    model = load_task_model(loaded)
    for name, file in asked.items():
        data = encoded(read_records(file, loaded.recipe.task), loaded.recipe, loaded.tokenizer, answers=False)
        write_predictions(predict(model, data, progress=progress), out / f"{name}.tsv", "glue")
        written.append(out / f"{name}.tsv")
    return written

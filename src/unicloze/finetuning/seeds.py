"""Repeats a fine-tuning with several seeds: mean and standard deviation of its scores."""

from __future__ import annotations

import itertools
import json
import math
import statistics
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unicloze import cores, keyed
from unicloze.errors import UniclozeError, UsageError
from unicloze.evaluation.metrics.registry import binomial_error
from unicloze.evaluation.metrics.result import MetricResult, shown
from unicloze.files import RECIPE, RESULTS, Plain, replace_file
from unicloze.finetuning.data import encoded, open_records
from unicloze.finetuning.predict import predict, write_predictions
from unicloze.finetuning.run import FinetuneResult, finetune_run
from unicloze.finetuning.scores import measure
from unicloze.interop.read import open_model
from unicloze.progress import counted
from unicloze.records import read_records
from unicloze.settings import Recipe
from unicloze.training.loading import LoadedModel
from unicloze.training.loop import shared_settings

FEW = 4
"""Number of metric values that fit in one line."""


@dataclass(frozen=True)
class OverSeeds:
    """Mean and standard deviation over the seeds.

    Args:
        mean: The mean.
        deviation: The sample standard deviation; None with one seed, or if a value is not finite.
    """

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> OverSeeds:
        """Mean and sample standard deviation of values."""
        several = len(values) > 1 and all(map(math.isfinite, values))
        return cls(statistics.fmean(values), statistics.stdev(values) if several else None)

    def shown(self, unit: str = "%") -> str:
        """Mean and deviation of a metric's value with this unit."""
        return shown(self.mean, unit, self.deviation)

    def __str__(self) -> str:
        return self.shown()


@dataclass(frozen=True)
class FinetuneSummary(Plain):
    """Outcome of a fine-tuning over all seeds.

    Args:
        out: The folder; with one seed the run directory.
        runs: One result per seed.
        scores: Mean and deviation of each value, by metric.
    """

    out: Path
    runs: Sequence[FinetuneResult]
    scores: Mapping[str, Mapping[str, OverSeeds]]

    @property
    def exit_code(self) -> int:
        """Process exit code: 128 + the signal that stopped the last run, or 0."""
        stopped = self.runs[-1].stopped_by
        return 128 + stopped if stopped else 0

    def __str__(self) -> str:
        """A line per seed and one for all; many values follow in tables."""
        lines, several = [], len(self.runs) > 1
        for run in self.runs:
            if run.stopped_by:
                lines.append(f"{run.out}: stopped and saved at step {run.step:,}; the same command resumes from there")
                continue
            said = {name: _with_errors(result) for name, result in run.scores.items()}
            values = _chosen_first(said, run.chosen_by)
            how = "kept by likelihood within two standard errors of the best" if run.likeliest else "best by"
            step = f"step {run.best_step:,}" + ", the fitted head" * (run.best_step == 0)
            kept = f", {how} {run.chosen_by} at {step}" if values else ""
            lines.append(f"{run.out}: trained to step {run.step:,}{kept}{_in_line(values)}")
            if run.verdict:
                lines.append(f"  {run.verdict}")
            if len(values) > FEW and not several:
                lines += [textwrap.indent(str(result), "  ") for result in run.scores.values()]
        if several:
            spreads = {}
            for name, of_values in self.scores.items():
                units = self.runs[0].scores[name].units
                spreads[name] = {key: one.shown(units.get(key, "%")) for key, one in of_values.items()}
            values = _chosen_first(spreads, self.runs[0].chosen_by)
            finished = counted(sum(not run.stopped_by for run in self.runs), "seed")
            lines.append(f"{self.out}: {finished}{_in_line(values)}")
            for name, each in spreads.items() if len(values) > FEW else ():
                width = max(map(len, each), default=0)
                lines += [f"  {name}", *(f"    {key:<{width}}  {spread}" for key, spread in each.items())]
        return "\n".join(lines)


def _with_errors(result: MetricResult) -> dict[str, str]:
    errors = {key: f" (standard error {result.shown(key, error)})" for key, error in result.errors.items()}
    return {key: result.shown(key) + errors.get(key, "") for key in result.values}


def _chosen_first(values: Mapping[str, Mapping[str, str]], chosen: str) -> list[str]:
    """The values of all metrics; the one that selected the checkpoint comes first."""
    each = [f"{key} {value}" for of_metric in values.values() for key, value in of_metric.items()]
    of_first = list(next(iter(values.values()), {}))
    if chosen in of_first:
        each.insert(0, each.pop(of_first.index(chosen)))
    return each


def _in_line(values: Sequence[str]) -> str:
    """The values as the end of a line: all of them, or only the first of many."""
    shown = values if len(values) <= FEW else values[:1]
    return f": {', '.join(shown)}" if shown else ""


def finetune_seeds(
    recipe: Recipe,
    start: LoadedModel,
    train: Path,
    dev: Path | None,
    out: Path,
    *,
    seeds: int = 1,
    progress: bool = True,
) -> FinetuneSummary:
    """Fine-tune with consecutive seeds from `training.seed`, each in its own folder if several; resumes if stopped."""
    _refuse_others(out, recipe.training.seed, seeds)
    runs: list[FinetuneResult] = []
    for number in range(seeds):
        seed = recipe.training.seed + number
        seeded = recipe.changed("training", seed=seed)
        folder = out if seeds == 1 else out / f"seed-{seed}"
        known = runs[-1].baselines if runs else None  # the same for all seeds
        with shared_settings(f"seed {seed} fails", "with several seeds") if seeds > 1 else nullcontext():
            runs.append(finetune_run(seeded, start, train, dev, folder, progress=progress, baselines=known))
        if runs[-1].stopped_by:
            break
    summary = FinetuneSummary(out, runs, _over_seeds([run for run in runs if not run.stopped_by]))
    if cores.rank() == 0:
        replace_file(out / RESULTS, json.dumps(summary.to_dict(), indent=1, ensure_ascii=False))
    return summary


def _refuse_others(out: Path, first: int, seeds: int) -> None:
    """Reject a folder with runs that its results would leave out."""
    names = [path.parent.name.removeprefix("seed-") for path in out.glob(f"seed-*/{RECIPE}")]
    there = sorted(int(name) for name in names if name.isdecimal())
    others = [seed for seed in there if not first <= seed < first + seeds]
    if seeds == 1 and there:
        what = f"{counted(len(there), 'run')} of --seeds, in folders seed-N"
    elif seeds > 1 and (out / RECIPE).is_file():
        what = "a run without --seeds"
    elif seeds > 1 and not there and (out / RESULTS).exists():
        what = f"{RESULTS}, which no run of several seeds wrote"
    elif others:
        what = f"the run of seed {others[0]}, which is not one of this command's {seeds} seeds from {first} on"
    else:
        return
    raise UsageError(f"{out} holds {what}: give {'the runs' if seeds > 1 else 'the run'} of this command another --out")


def _over_seeds(runs: Sequence[FinetuneResult]) -> Mapping[str, Mapping[str, OverSeeds]]:
    """Mean and deviation of the values that all runs have: a class that only one run predicts has no F1 in the others."""
    found: dict[str, dict[str, OverSeeds]] = {}
    for name in runs[0].scores if runs else ():
        each = [run.scores[name].values for run in runs if name in run.scores]
        common = [key for key in each[0] if all(key in values for values in each)]
        found[name] = {key: OverSeeds.of([values[key] for values in each]) for key in common}
    return found


class GlueTask(NamedTuple):
    """A task of the benchmark."""

    name: str  # of its folder and of the files for the server
    values: Sequence[str] = ("accuracy",)  # those reported in papers; the first is that of UniLM v1's Table 11
    selects: str = "accuracy"  # the value of UniLMv2's Table 3, by which its grid of settings (Table 9) chooses


GLUE: Mapping[str, GlueTask] = {
    "cola": GlueTask("CoLA", ("matthews",), "matthews"),
    "sst-2": GlueTask("SST-2"),
    "mrpc": GlueTask("MRPC", ("f1", "accuracy")),
    "sts-b": GlueTask("STS-B", ("spearman", "pearson"), "pearson"),
    "qqp": GlueTask("QQP", ("f1", "accuracy")),
    **{name.lower(): GlueTask(name) for name in ("MNLI", "QNLI", "RTE", "WNLI")},
}

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
GLUE_RESULTS, LEADERBOARD, _DRAWS = "glue.json", "leaderboard", 11

RecipeOf = Callable[[str, Mapping[str, Any]], Recipe]
"""Gives the recipe of a task by name, with some settings changed."""


@dataclass(frozen=True)
class GlueTaskResult:
    """Result of one task.

    Args:
        name: Name in the benchmark.
        values: Values on the development file, by name: means over the seeds of the best setting.
        score: Mean of the values.
        error: Standard error from the number of development records: the mean over the values; nan if unknown.
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


def _known(error: float) -> str:
    return "not known" if math.isnan(error) else f"{error:.2f}"


@dataclass(frozen=True, kw_only=True)
class GlueSummary(Plain):
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
        return {**super().to_dict(), "score": self.score if self.tasks else None, "error": self.error}

    def __str__(self) -> str:
        lines = []
        for task in self.tasks:
            values = ", ".join(f"{name} {value:.2f}" for name, value in task.values.items())
            said = ", ".join(f"{key} {value:g}" for key, value in task.settings.items())
            of = f"; best of {task.tried} settings: {said or 'those of the recipe'}" if task.tried > 1 else ""
            lines.append(f"{task.name:<6} {task.score:6.2f} (standard error {_known(task.error)}): {values}{of}")
        if self.stopped_by:
            lines.append(f"{self.out}: stopped and saved; the same command resumes from there")
        elif self.tasks:
            missing = len(GLUE) - len(self.tasks)
            without = f", {missing} of GLUE's {len(GLUE)} tasks missing" if missing else ""
            lines.append(
                f"score  {self.score:6.2f} (standard error {_known(self.error)}), on development files{without}"
            )
        if self.files:
            lines.append(f"{self.out / LEADERBOARD}: {len(self.files)} files for the benchmark's server")
        return "\n".join(lines)


def finetune_glue(
    recipe_of: RecipeOf, start: LoadedModel, folder: Path, out: Path, *, seeds: int, grid_budget: int, progress: bool
) -> GlueSummary:
    """Fine-tune on every GLUE task in a folder; resumes if stopped."""
    found = list(_found(folder))
    if not found:
        known = ", ".join(task.name for task in GLUE.values())
        cure = f"give a folder with some of the folders {known}, each with train.tsv and dev.tsv"
        raise UniclozeError(f"{folder} holds no GLUE task: {cure}")
    results: list[GlueTaskResult] = []
    files: list[Path] = []
    stopped = 0
    for task, *own in found:
        result, run = _task(recipe_of, start, task, own, out, grid_budget, seeds=seeds, progress=progress)
        if result is None:
            stopped = run.stopped_by
            break
        results.append(result)
        files += _files_for_server(task, run, folder, out / LEADERBOARD, progress)
    summary = GlueSummary(out=out, tasks=results, files=files, stopped_by=stopped)
    replace_file(out / GLUE_RESULTS, json.dumps(summary.to_dict(), indent=1))
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
    for task, (name, *_) in GLUE.items():
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
    recipe_of: RecipeOf, start: LoadedModel, task: str, files: Sequence[Path], out: Path, budget: int, **how: Any
) -> tuple[GlueTaskResult | None, FinetuneResult]:
    """The result of the best setting, None if stopped by a signal, and the run of its best seed."""
    train, dev = files
    settings = grid(recipe_of(task, {}), budget)
    tried: list[tuple[dict[str, float], FinetuneSummary]] = []
    for number, changes in enumerate(settings):
        place = out / GLUE[task].name / (f"setting-{number}" if len(settings) > 1 else "")
        summary = finetune_seeds(recipe_of(task, changes), start, train, dev, place, **how)
        if summary.runs[-1].stopped_by:
            return None, summary.runs[-1]
        tried.append((changes, summary))
    file = _first(dev.parent, _MISMATCHED) if task == "mnli" else None
    others = {} if file is None else {run.out: _measured(run, file) for _, tuned in tried for run in tuned.runs}

    def selecting(run: FinetuneResult) -> float:
        mismatched = [others[run.out].values["accuracy"]] if others else []
        return statistics.fmean([run.values[GLUE[task].selects], *mismatched])

    changes, summary = max(tried, key=lambda one: statistics.fmean(map(selecting, one[1].runs)))
    best = max(summary.runs, key=selecting)
    means = {name: statistics.fmean(run.values[name] for run in summary.runs) for name in GLUE[task].values}
    known = {name: error for result in best.scores.values() for name, error in result.errors.items()}
    errors = {name: known[name] for name in GLUE[task].values if name in known}
    if others:
        means["mismatched"] = statistics.fmean(others[run.out].values["accuracy"] for run in summary.runs)
        errors["mismatched"] = binomial_error(means["mismatched"], others[best.out].items)
    score, error = statistics.fmean(means.values()), statistics.fmean(errors.values() or [math.nan])
    if others:  # of different records
        error = math.hypot(*errors.values()) / len(errors)
    return GlueTaskResult(GLUE[task].name, means, score, error, changes, len(tried), summary.out), best


def _measured(run: FinetuneResult, file: Path) -> MetricResult:
    """Accuracy of the best checkpoint of a run on another file."""
    loaded = open_model(run.out)
    data = open_records(file, loaded.recipe, loaded.tokenizer)
    return measure(predict(loaded, data), data.records, loaded.recipe)["accuracy"]


def _files_for_server(task: str, run: FinetuneResult, folder: Path, out: Path, progress: bool) -> list[Path]:
    """Write predictions for the unlabelled files, and with MNLI also for the diagnostic set."""
    own = GLUE[task].name
    tests = {f"{own}{ending}": _first(folder / own, names) for ending, names in _TESTS.items()}
    if task == "mnli":
        tests["AX"] = _first(folder, _AX)
    asked = {out / f"{name}.tsv": file for name, file in tests.items() if file is not None}
    if not asked:
        return []
    out.mkdir(parents=True, exist_ok=True)
    loaded = open_model(run.out)
    for path, file in asked.items():
        data = encoded(read_records(file, loaded.recipe.task), loaded.recipe, loaded.tokenizer, answers=False)
        write_predictions(predict(loaded, data, progress=progress), path, "glue")
    return [*asked]

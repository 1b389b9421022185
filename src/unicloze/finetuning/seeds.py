"""Repeats a fine-tuning with several seeds: mean and standard deviation of its scores."""

from __future__ import annotations

import dataclasses
import json
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unicloze import cores
from unicloze.errors import UsageError
from unicloze.evaluation.metrics.result import MetricResult
from unicloze.files import RECIPE, RESULTS, replace_file
from unicloze.finetuning.run import FinetuneResult, finetune_run
from unicloze.settings import Recipe
from unicloze.training.loading import LoadedModel

FEW = 4
"""Number of metric values that fit in one line."""


@dataclass(frozen=True)
class OverSeeds:
    """Mean and standard deviation over the seeds.

    Args:
        mean: The mean.
        deviation: The sample standard deviation; None with one seed.
    """

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> OverSeeds:
        """Mean and sample standard deviation of values."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if self.deviation is None else f" \u00b1 {self.deviation:.2f}")


@dataclass(frozen=True)
class FinetuneSummary:
    """Outcome of a fine-tuning over all seeds.

    Args:
        out: The folder; with one seed the run directory.
        runs: One result per seed.
        scores: Mean and deviation of each value, by metric.
    """

    out: Path
    runs: Sequence[FinetuneResult]
    scores: Mapping[str, Mapping[str, OverSeeds]]

    def to_dict(self) -> dict[str, Any]:
        """The fields as a JSON-serialisable dictionary."""
        return {
            "out": str(self.out),
            "runs": [
                {
                    "out": str(run.out),
                    "step": run.step,
                    "best_step": run.best_step,
                    "chosen_by": run.chosen_by,
                    "likeliest": run.likeliest,
                    "stopped_by": run.stopped_by,
                    "scores": {name: result.to_dict() for name, result in run.scores.items()},
                    "baselines": [baseline.to_dict() for baseline in run.baselines],
                    "verdict": run.verdict,
                }
                for run in self.runs
            ],
            "scores": {
                name: {key: dataclasses.asdict(spread) for key, spread in values.items()}
                for name, values in self.scores.items()
            },
        }

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
            how = "likeliest within a standard error of the best" if run.likeliest else "best by"
            kept = f", {how} {run.chosen_by} at step {run.best_step:,}" if values else ""
            lines.append(f"{run.out}: trained to step {run.step:,}{kept}{_in_line(values)}")
            if run.verdict:
                lines.append(f"  {run.verdict}")
            if len(values) > FEW and not several:
                lines += [textwrap.indent(str(result), "  ") for result in run.scores.values()]
        if several:
            spreads = {name: {key: str(one) for key, one in each.items()} for name, each in self.scores.items()}
            values = _chosen_first(spreads, self.runs[0].chosen_by)
            lines.append(f"{self.out}: {len(self.runs)} seeds{_in_line(values)}")
            for name, each in spreads.items() if len(values) > FEW else ():
                width = max(map(len, each), default=0)
                lines += [f"  {name}", *(f"    {key:<{width}}  {spread}" for key, spread in each.items())]
        return "\n".join(lines)


def _with_errors(result: MetricResult) -> dict[str, str]:
    return {
        key: f"{value:.2f}" + (f" (standard error {result.errors[key]:.2f})" if key in result.errors else "")
        for key, value in result.values.items()
    }


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
        seeded = dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, seed=seed))
        folder = out if seeds == 1 else out / f"seed-{seed}"
        runs.append(finetune_run(seeded, start, train, dev, folder, progress=progress))
        if runs[-1].stopped_by:
            break
    summary = FinetuneSummary(out, runs, _over_seeds(runs))
    if cores.rank() == 0:
        replace_file(out / RESULTS, json.dumps(summary.to_dict(), indent=1, ensure_ascii=False))
    return summary


def _refuse_others(out: Path, first: int, seeds: int) -> None:
    """Reject a folder with runs that its results would leave out."""
    names = [path.parent.name.removeprefix("seed-") for path in out.glob(f"seed-*/{RECIPE}")]
    there = sorted(int(name) for name in names if name.isdecimal())
    others = [seed for seed in there if not first <= seed < first + seeds]
    if seeds == 1 and there:
        what = f"{len(there)} run{'s' * (len(there) > 1)} of --seeds, in folders seed-N"
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

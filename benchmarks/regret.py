"""Does the automatic learning rate of fine-tuning cost anything? Its score beside those of half and twice the rate.

    python benchmarks/regret.py --data DIR --models MODEL... [--minutes N] [--cells 'PATTERN'] [--results FILE]
    python benchmarks/regret.py                                                          # only the table

DIR holds GLUE's files and tagged English; MODEL is a run directory, a model folder or an installed model. A cell is one
fine-tuning: a model, a task, a seed and a factor of the rate, named like `22.7M/SST-2/0/half`, with the recipe's settings
otherwise. The seed also draws the training records. The best checkpoint by the development records is scored on test records.

Each cell is appended to the file of results as soon as it is measured, and is not measured again, so that several sessions
can fill the table. Small models come first, then low seeds, then short texts. A changed rule keeps the cells whose rates it
uses.

regret   the best of the three mean scores over the seeds, less that of the chosen rate. Chance alone makes it positive
unseen   the same for the rate that is best on the other seeds, scored on the seed left out: right on average, may be negative

A cell is at the majority class if its score is no better than that of giving one answer to everything.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import random
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from json_lines import read_lines
from unicloze import verbs
from unicloze.finetuning.data import model_fingerprint, open_records
from unicloze.finetuning.initial import learning_rate
from unicloze.finetuning.predict import predict
from unicloze.finetuning.scores import headline, measure
from unicloze.records import read_records
from unicloze.records.record import Record
from unicloze.settings import Recipe
from unicloze.tasks import TASKS as KINDS
from unicloze.tasks import task_settings
from unicloze.training.loading import LoadedModel, load_model

RESULTS = Path(__file__).parent / "results" / "regret.jsonl"
FACTORS = {"half": 0.5, "once": 1.0, "twice": 2.0}
"""Factors of the chosen rate, by name."""
SEEDS = 3
RECORDS = 1600
"""Training records of a cell."""
DEVELOPMENT, TEST = 400, 1000
"""Records that choose the checkpoint, and at most so many that score it."""


@dataclass(frozen=True)
class Task:
    """A task: its recipe, metric, format, files and the roles of a record."""

    recipe: str
    metric: str
    format: str
    train: str
    test: tuple[str, ...]
    roles: tuple[str, ...] = ("text", "pair", "label")


COLA = "glue/CoLA/dev_in.tsv.gz", "glue/CoLA/dev_out.tsv.gz"
MRPC = "glue/MRPC/msr_paraphrase_train.tsv.gz", "glue/MRPC/msr_paraphrase_test.tsv.gz"
EWT = "tagging/en_ewt-train.conllu.gz", "tagging/en_ewt-dev.conllu.gz"
TASKS = {
    "CoLA": Task("classification", "matthews", "glue-cola", "glue/CoLA/train.tsv.gz", COLA),
    "SST-2": Task("classification", "accuracy", "glue-sst-2", "glue/SST-2/train.tsv.gz", ("glue/SST-2/test.tsv.gz",)),
    "RTE": Task("classification", "accuracy", "glue-rte", "glue/RTE/train.tsv.gz", ("glue/RTE/dev.tsv.gz",)),
    "MRPC": Task("classification", "accuracy", "glue-mrpc", MRPC[0], MRPC[1:]),
    "STS-B": Task(
        "regression", "pearson", "glue-sts-b", "glue/STS-B/sts-train.csv.gz", ("glue/STS-B/sts-test.csv.gz",)
    ),
    "tags": Task("tagging", "tag-accuracy", "conllu", EWT[0], EWT[1:], roles=("tokens", "tags")),
}


@dataclass(frozen=True)
class Records:
    """The records of a task: those to draw training records from, development and test."""

    pool: Sequence[Mapping[str, Any]]
    development: Sequence[Mapping[str, Any]]
    test: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, task: Task, folder: Path) -> Records:
        """Read the files; test records that the task lacks are taken from its training file."""
        train = _read(folder / task.train, task)
        random.Random(0).shuffle(train)
        development, pool = train[:DEVELOPMENT], train[DEVELOPMENT:]
        test = [record for name in task.test for record in _read(folder / name, task)]
        random.Random(0).shuffle(test)
        lacking = min(TEST - len(test), len(pool) - RECORDS)
        if lacking > 0:
            test, pool = test + pool[:lacking], pool[lacking:]
        return cls(pool, development, test[:TEST])

    @property
    def labels(self) -> list[str]:
        """All classes or tags, some of which few training records may lack."""
        answers = [
            record.get("tags", record.get("label"))
            for part in (self.pool, self.development, self.test)
            for record in part
        ]
        return sorted({label for answer in answers for label in (answer if isinstance(answer, list) else [answer])})

    @property
    def length(self) -> float:
        """Mean number of characters of a record."""
        return statistics.fmean(len(json.dumps(record, ensure_ascii=False)) for record in self.pool)


def _read(path: Path, task: Task) -> list[Mapping[str, Any]]:
    settings = task_settings(task.recipe, format=task.format)
    found = [{role: record.get(settings, role) for role in task.roles} for record in read_records(path, settings)]
    return [{role: value for role, value in record.items() if value is not None} for record in found]


@dataclass(frozen=True)
class Cell:
    """A fine-tuning to measure."""

    size: str
    start: str
    weights: int
    task: str
    seed: int
    factor: str
    records: int

    @property
    def rate(self) -> float:
        """Its learning rate."""
        return float(f"{learning_rate(self.weights) * FACTORS[self.factor]:.1e}")

    @property
    def name(self) -> str:
        return f"{self.size}/{self.task}/{self.seed}/{self.factor}"

    def is_in(self, measured: Mapping[str, Any]) -> bool:
        """Whether this is a measured cell."""
        own = {**asdict(self), "rate": self.rate}
        return all(own[key] == measured[key] for key in ("start", "task", "seed", "rate", "records"))


def size_of(weights: int) -> str:
    """Name of a model's size."""
    return f"{weights / 1e6:.1f}M"


def cells_of(start: str, weights: int, records: int) -> Iterator[Cell]:
    """All cells of a model."""
    for seed in range(SEEDS):
        for task in TASKS:
            for factor in FACTORS:
                yield Cell(size_of(weights), start, weights, task, seed, factor, records)


def write(path: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    """Write records as JSON lines."""
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return path


def measured(cell: Cell, start: LoadedModel, records: Records) -> dict[str, Any]:
    """Fine-tune and score.

    Raises:
        SystemExit: A signal stopped the training.
    """
    task = TASKS[cell.task]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        drawn = random.Random(cell.seed).sample(list(records.pool), min(cell.records, len(records.pool)))
        train = write(folder / "train.jsonl", drawn)
        development = write(folder / "dev.jsonl", records.development)
        test = write(folder / "test.jsonl", records.test)
        given: dict[str, Any] = {
            "training.learning_rate": cell.rate,
            "training.seed": cell.seed,
            "task.metrics": [task.metric],
        }
        if task.recipe != "regression":
            given["task.labels"] = records.labels
        began, used = time.perf_counter(), time.process_time()
        run = folder / "run"
        if verbs.finetune(task.recipe, start, train, development, run, quiet=True, overrides=given).exit_code:
            raise SystemExit("stopped; the same command goes on")
        model = load_model(run)
        data = open_records(test, model.recipe, model.tokenizer)
        score = headline(measure(predict(model, data), data.records, model.recipe), model.recipe)
        return {
            **asdict(cell),
            "rate": cell.rate,
            "score": round(score, 2),
            "majority": round(majority(read_records(train, model.recipe.task), data.records, model.recipe), 2),
            "steps": model.recipe.training.steps,
            "precision": model.recipe.training.precision,
            "threads": torch.get_num_threads(),
            "seconds": round(time.perf_counter() - began),
            "processor_seconds": round(time.process_time() - used),
        }


def majority(train: Sequence[Record], test: Sequence[Record], recipe: Recipe) -> float:
    """The score of giving the most common answer of the training records to everything."""
    answers = [KINDS[recipe.task.kind].reference(record, recipe.task) for record in train]
    if recipe.task.kind == "tagging":
        common: Any = Counter(tag for tags in answers for tag in tags).most_common(1)[0][0]
        constant = [{"prediction": [common] * len(record.texts(recipe.task, "tokens"))} for record in test]
    else:
        common = statistics.fmean(map(float, answers)) if recipe.task.kind == "regression" else None
        common = Counter(answers).most_common(1)[0][0] if common is None else common
        constant = [{"prediction": common}] * len(test)
    return headline(measure(constant, test, recipe), recipe)


def fill(options: argparse.Namespace) -> None:
    """Measure what is missing, until the time is over."""
    deadline = time.monotonic() + 60 * options.minutes
    models = sorted(map(verbs.load_model, options.models), key=lambda model: model.model.num_parameters())
    records = {name: Records.of(task, options.data) for name, task in TASKS.items()}
    for start in models:
        digest, weights = model_fingerprint(start)[:16], start.model.num_parameters()
        cells = sorted(
            cells_of(digest, weights, options.records), key=lambda cell: (cell.seed, records[cell.task].length)
        )
        for cell in cells:
            known = read_lines(options.results)  # another process may have added some
            if not fnmatch.fnmatch(cell.name, options.cells) or any(map(cell.is_in, known)):
                continue
            alike = [one["seconds"] for one in known if (one["start"], one["task"]) == (digest, cell.task)]
            if time.monotonic() + (alike[-1] if alike else 0) > deadline:
                return
            found = measured(cell, start, records[cell.task])
            with options.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
            print(
                f"{cell.name}: {found['score']:.1f} (majority {found['majority']:.1f}), {found['seconds']} s",
                flush=True,
            )


def table(results: Sequence[Mapping[str, Any]], records: int) -> str:
    """The scores of each model and task by factor, and the regret of each model over its tasks."""
    lines = [f"{'size':>6} {'task':5} seeds {'half':>6} {'once':>6} {'twice':>6} {'regret':>7} {'unseen':>7} majority"]
    ends: list[str] = []
    for weights, start in sorted({(one["weights"], one["start"]) for one in results}):
        cells = list(cells_of(start, weights, records))
        found = {cell: one for cell in cells for one in results if cell.is_in(one)}
        scores: dict[str, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
        for cell, one in found.items():
            scores[cell.task][cell.seed][cell.factor] = one["score"]
        regrets: list[float] = []
        unseen: list[float] = []
        for task, seeds in scores.items():
            whole = [of for of in seeds.values() if len(of) == len(FACTORS)]
            if not whole:
                continue
            means = {factor: statistics.fmean(of[factor] for of in whole) for factor in FACTORS}
            regrets.append(max(means.values()) - means["once"])
            others = unseen_regret(whole)
            unseen += [others] if others is not None else []
            shown = "      -" if others is None else f"{others:7.1f}"
            floor = statistics.fmean(one["majority"] for cell, one in found.items() if cell.task == task)
            values = " ".join(f"{value:6.1f}" for value in means.values())
            lines.append(
                f"{size_of(weights):>6} {task:5} {len(whole):5} {values} {regrets[-1]:7.1f} {shown} {floor:8.1f}"
            )
        ends.append(f"{size_of(weights)}: regret {with_interval(regrets)}, unseen {with_interval(unseen)}")
        low = [cell for cell, one in found.items() if one["score"] <= one["majority"]]
        of_once = sorted({cell.task for cell in low if cell.factor == "once"})
        said = f" ({', '.join(of_once)} at the chosen rate)" if of_once else ""
        ends.append(f"  {len(low)} of {len(found)} cells at the majority class{said}")
        ends.append(f"  {len(cells) - len(found)} of {len(cells)} cells missing")
    return "\n".join([*lines, *ends])


def unseen_regret(seeds: Sequence[Mapping[str, float]]) -> float | None:
    """Mean gain, over the chosen rate, of the rate that is best on the other seeds; None for a single seed."""
    if len(seeds) < 2:
        return None
    gains = []
    for left_out in range(len(seeds)):
        others = [of for number, of in enumerate(seeds) if number != left_out]
        best = max(FACTORS, key=lambda factor: (sum(of[factor] for of in others), factor == "once"))
        gains.append(seeds[left_out][best] - seeds[left_out]["once"])
    return statistics.fmean(gains)


def with_interval(values: Sequence[float]) -> str:
    """The mean over tasks, and its 95 % interval by Student's t."""
    if not values:
        return "not measured"
    mean, over = statistics.fmean(values), f"over {len(values)} task{'s' * (len(values) > 1)}"
    if len(values) == 1:
        return f"{mean:.2f} {over}"
    from scipy.stats import t

    half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.2f} ({mean - half:.2f} to {mean + half:.2f}) {over}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the records")
    parser.add_argument("--models", nargs="+", default=[], help="models to fine-tune")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no cell that would end later")
    parser.add_argument("--cells", default="*", help="measure only cells whose names match")
    parser.add_argument(
        "--records", type=int, help=f"training records of a cell (default: {RECORDS}; all in the table)"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of measured cells")
    options = parser.parse_args()
    if options.models and options.data is None:
        parser.error("--models needs --data, the folder of the records")
    lines = read_lines(options.results)
    counts = [options.records] if options.records else sorted({line["records"] for line in lines} or {RECORDS})
    if options.models:
        options.records = options.records or RECORDS
        fill(options)
        lines, counts = read_lines(options.results), [options.records]
    print("\n\n".join(table(lines, count) for count in counts))


if __name__ == "__main__":
    main()

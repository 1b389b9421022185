"""The UniLMv2 paper's Table 6 in small: its rows on one text, then fine-tuned on tasks of understanding and of writing.

    python benchmarks/table_6.py --equal-steps FOLDER --equal-flops FOLDER --corpus FILE... --glue FOLDER --squad FILE
        --questions TRAIN DEV [--steps 2000] [--seeds 3] [--window 128] [--lines FILE] [--page FILE] [settings]
    python benchmarks/table_6.py                                                 # only the tables, of what is measured

1. `unicloze compare table-6 --like quickstart` with equal steps and some seeds, as in the paper, and one seed with the
   FLOPs of row [2] for every row. A folder that holds such a comparison, finished or not, is continued.
2. SST-2 (the first 6,400 phrases) and MRPC from every run; SQuAD (the development file, split by article) and question
   generation (3,200 pairs of FairytaleQA) from those of the first seed with equal steps. All rows have the same settings,
   and nothing is chosen on the test records.

FILE gets a JSON line for each run and fine-tuning, and PAGE the tables; the same command continues after a stop. What needs
an option that is absent is left out: without --corpus nothing is pre-trained, and the finished runs of the folders are
measured. Dotted settings apply to all pre-trainings.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from frame import options, parsed_known, show
from json_lines import cell, once, read_lines
from real_tasks import first_lines, split_articles, text_of
from short_runs import finetuned
from unicloze import verbs
from unicloze.comparison.contestants import network
from unicloze.files import RECIPE
from unicloze.recipes import load_recipe, parse_options, recipes_of
from unicloze.report.history import History

RESULTS = Path(__file__).parent / "results" / "table_6.jsonl"
ROWS = {name: f"[{number}]" for number, name in enumerate(recipes_of(["table-6"]), 1)}
BASE = "unilmv2-ablation-ae-par"
"""The row, AE+PAR without relative bias, that the others are compared with."""
EQUAL = "steps", "flops"
PERPLEXITIES = "ae", "par", "causal"
COMMON = {
    "training.batch_size": 32,
    "training.learning_rate": 1e-3,
    "training.device": "cpu",
    "training.precision": "fp32",
}


class Probe(NamedTuple):
    """A task: its recipe, settings, score and title."""

    recipe: str
    settings: Mapping[str, Any]
    score: str
    title: str
    always: bool


PROBES = {
    "sst-2": Probe("glue-sst-2", {"finetuning.epochs": 3}, "accuracy", "SST-2, accuracy", True),
    "mrpc": Probe("glue-mrpc", {"finetuning.epochs": 3}, "accuracy", "MRPC, accuracy", True),
    "squad": Probe("squad-v1.1", {"finetuning.epochs": 2}, "f1", "SQuAD, F1", False),
    "questions": Probe(
        "squad-question-generation",
        {
            "finetuning.epochs": 1, "task.fields": {"answer": "answers.0", "target": "question"},
            "generation.max_target": 32, "decoding.beams": 4, "decoding.max_length": 32,
        },
        "rouge_l", "questions, ROUGE-L", False,
    ),
}  # fmt: skip
"""The last two are fine-tuned from the first seed at equal steps alone."""
COLUMNS = {
    "ae": "AE perplexity", "par": "PAR perplexity", "causal": "causal perplexity",
    **{name: probe.title for name, probe in PROBES.items()},
}  # fmt: skip


def compared(folder: Path, given: argparse.Namespace, budget: str, seeds: int) -> None:
    """Train and measure the rows, unless the folder has their results."""
    plan = folder / "comparison.json"
    if plan.is_file() and json.loads(plan.read_text(encoding="utf-8")).get("seeds", 0) >= seeds:
        return
    verbs.compare(
        ["table-6"], budget, seeds=seeds, out=folder, like="quickstart",
        overrides={
            "data.corpus": given.corpus, "data.window": given.window, "training.precision": "fp32",
            "training.evaluate_windows": 512, "training.start": "random", **given.settings,
        },
    )  # fmt: skip


def flops_of(folder: Path, steps: int) -> float:
    """Floating-point operations of row [2] in so many steps."""
    plan = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))["plan"]
    (found,) = (entry["flops_per_step"] for entry in plan if entry["name"] == BASE)
    return float(f"{found * steps:.4g}")


def runs_in(folder: Path) -> Iterator[Path]:
    """The measured runs of a comparison, by seed and row."""
    for seed in sorted({run.name for run in folder.glob("*/seed-*")}):
        yield from (folder / name / seed for name in ROWS if (folder / name / seed / "scores.json").is_file())


def of_text(run: Path) -> dict[str, Any]:
    """The scores and costs of a run."""
    known, history = json.loads((run / "scores.json").read_text(encoding="utf-8")), History.read(run)
    perplexities = {
        name: None if known["nats"][name] is None else round(math.exp(known["nats"][name]), 2) for name in PERPLEXITIES
    }
    return {
        "network": network(load_recipe(run / RECIPE)),
        "parameters": history.start["parameters"],
        "steps": known["steps"],
        "text_tokens": round(history.curve("text_tokens")[-1][1]),
        **perplexities,
        "trigram": {name: round(counts["trigram"], 1) for name, counts in history.counts.items()},
        "seconds": round(history.seconds),
    }


def files_of(name: str, given: argparse.Namespace, folder: Path) -> tuple[Path, Path] | None:
    """Training and test file of a probe; None without its option."""
    if name == "squad":
        return None if given.squad is None else split_articles(given.squad, folder)
    if name == "questions":
        if given.questions is None:
            return None
        counts = {"train": given.pairs, "test": given.test_pairs}
        parts = [
            first_lines(file, folder, side, counts[side]) for file, side in zip(given.questions, counts, strict=True)
        ]
        return parts[0], parts[1]
    if given.glue is None:
        return None
    if name == "mrpc":
        return given.glue / "MRPC/msr_paraphrase_train.tsv.gz", given.glue / "MRPC/msr_paraphrase_test.tsv.gz"
    train = folder / "sst-2.tsv"
    lines = text_of(given.glue / "SST-2/train.tsv.gz").splitlines()[: given.phrases + 1]
    train.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return train, given.glue / "SST-2/test.tsv.gz"


def probed(probe: Probe, run: Path, files: tuple[Path, Path], seed: int, window: int) -> dict[str, Any]:
    """Fine-tune a run on a task."""
    lengths = {"task.max_length": window}
    if "generation.max_target" in probe.settings:
        lengths = {"generation.max_source": window - probe.settings["generation.max_target"]}
    found = finetuned(probe.recipe, run, files, {**COMMON, **probe.settings, **lengths, "training.seed": seed})
    return {"score": round(found["scores"][probe.score], 2), **found}


def measure(given: argparse.Namespace) -> None:
    """Do what is missing and write its lines."""
    folders = {"steps": given.equal_steps, "flops": given.equal_flops}
    if given.corpus and given.equal_steps is not None:
        compared(given.equal_steps, given, f"steps={given.steps}", given.seeds)
        if given.equal_flops is not None:
            compared(given.equal_flops, given, f"flops={flops_of(given.equal_steps, given.steps):g}", 1)
    runs = [(equal, run) for equal in EQUAL if folders[equal] is not None for run in runs_in(folders[equal])]

    def key(equal: str, run: Path, what: str) -> dict[str, Any]:
        return {"equal": equal, "recipe": run.parent.name, "seed": int(run.name.removeprefix("seed-")), "what": what}

    for equal, run in runs:
        once(given.lines, key(equal, run, "text"), functools.partial(of_text, run))
    for name, probe in PROBES.items():
        with tempfile.TemporaryDirectory() as place:
            if (files := files_of(name, given, Path(place))) is None:
                continue
            for equal, run in runs:
                if probe.always or (equal, run.name) == ("steps", "seed-0"):
                    known = key(equal, run, name)
                    once(given.lines, known, functools.partial(probed, probe, run, files, known["seed"], given.window))


def values_of(lines: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str], dict[int, float]]:
    """The scores by seed, for each comparison, row and column."""
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for line in lines:
        scores = line if line["what"] == "text" else {line["what"]: line["score"]}
        for column in COLUMNS:
            if scores.get(column) is not None:
                found.setdefault((line["equal"], line["recipe"], column), {})[line["seed"]] = scores[column]
    return found


def table(lines: Sequence[Mapping[str, Any]], equal: str) -> str:
    """One comparison as Markdown; empty if nothing of it is measured."""
    texts = {
        name: [line for line in lines if (line["equal"], line["recipe"], line["what"]) == (equal, name, "text")]
        for name in ROWS
    }
    values = values_of([line for line in lines if line["equal"] == equal])
    columns = {name: title for name, title in COLUMNS.items() if any(name == column for _, _, column in values)}
    if not columns:
        return ""
    heads = ["row", "network", *columns.values(), "seeds", "steps", "text tokens", "minutes"]
    rows = ["| " + " | ".join(heads) + " |", "|---|---|" + "---:|" * (len(heads) - 2)]
    for name, runs in texts.items():
        if not runs:
            continue
        cells = [
            cell(values.get((equal, name, column), {}), None if name == BASE else values.get((equal, BASE, column)))
            for column in columns
        ]
        means = [statistics.fmean(run[key] for run in runs) for key in ("steps", "text_tokens", "seconds")]
        costs = [f"{len(runs)}", f"{means[0]:,.0f}", f"{means[1] / 1e6:.2f} M", f"{means[2] / 60:.0f}"]
        label = f"{ROWS[name]} {name.removeprefix('unilmv2-ablation-')}"
        rows.append("| " + " | ".join([label, runs[0]["network"], *cells, *costs]) + " |")
    return "\n".join(rows)


def missing(lines: Sequence[Mapping[str, Any]], seeds: int) -> list[str]:
    """What is not yet measured, in words."""
    done = {(line["equal"], line["what"], line["recipe"], line["seed"]) for line in lines}
    found = []
    for equal, what in itertools.product(EQUAL, ("text", *PROBES)):
        if equal == "flops" and what != "text" and not PROBES[what].always:
            continue
        wanted = range(seeds if equal == "steps" and (what == "text" or PROBES[what].always) else 1)
        every = [(name, seed) for seed in wanted for name in ROWS]
        rows = [f"{ROWS[name]} seed {seed}" for name, seed in every if (equal, what, name, seed) not in done]
        if rows:
            whole = "all" if len(rows) == len(every) else ", ".join(rows)
            found.append(f"{what} at equal {equal}: {whole}")
    return found


def tables(seeds: int = 3) -> str:
    """What is measured, as text of a page."""
    return as_text(read_lines(RESULTS), seeds)


def as_text(lines: Sequence[Mapping[str, Any]], seeds: int) -> str:
    """Both tables with what they hold and lack."""
    titles = {"steps": "Equal steps", "flops": "Equal FLOPs"}
    parts = []
    for equal in EQUAL:
        if drawn := table(lines, equal):
            hours = sum(line["seconds"] for line in lines if line["equal"] == equal) / 3600
            parts += [f"{titles[equal]} ({hours:.1f} hours of one thread):", drawn]
    if absent := missing(lines, seeds):
        parts.append("Not yet measured: " + "; ".join(absent) + ".")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Run what is missing, print the tables and write them into the page."""
    parser = options(__doc__)
    parser.add_argument("--equal-steps", type=Path)
    parser.add_argument("--equal-flops", type=Path)
    parser.add_argument("--corpus", nargs="+")
    parser.add_argument("--glue", type=Path)
    parser.add_argument("--squad", type=Path)
    parser.add_argument("--questions", type=Path, nargs=2)
    parser.add_argument("--lines", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, help="write the tables into this page")
    numbers = {"steps": 2000, "seeds": 3, "window": 128, "phrases": 6400, "pairs": 3200, "test-pairs": 500}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    small = "--steps 2 --seeds 1 --window 64 --phrases 8 --pairs 4 --test-pairs 2"
    given, extra = parsed_known(parser, small)
    given.settings = parse_options(extra)
    measure(given)
    show(as_text(read_lines(given.lines), given.seeds), given.page, Path(__file__))


if __name__ == "__main__":
    main()

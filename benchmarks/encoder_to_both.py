"""From an encoder to an encoder and a generator: one text after four objectives, then tasks of understanding and of writing.

    python benchmarks/encoder_to_both.py --model MINILM --corpus FILE... --glue FOLDER --questions TRAIN DEV
        --abstracts TRAIN DEV --out FOLDER [--rows a b c d e f] [--tasks sst-2 sts-b questions summaries] [--steps 500]
        [--batch-size 16] [--device cpu] [--lines FILE] [--page FILE]
    python benchmarks/encoder_to_both.py                                         # only the tables, of what is measured

Row a is MINILM as it is, a model folder or run; b to e continue it with AE, PAR, AE+PAR and left-to-right prediction, and f
with AE+PAR at the lower rate of `auto`, on the same windows in the same order. The new head has its own rate. Each row is
then fine-tuned by the defaults of the tasks: SST-2 (the first 6,400 phrases), STS-B, questions (3,200 pairs of FairytaleQA,
one epoch) and summaries (SciTLDR; LEAD-1 and LEAD-3 stand beside), rows a, b, d and f with three seeds. Nothing is chosen
on the test records. FILE gets a JSON line for each training, and PAGE the tables; the same command continues after a stop.
What needs an option that is absent is left out. `--prepared FOLDER`, written by `unicloze prepare`, may replace `--corpus`.
Dotted settings apply to all pre-trainings.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from frame import options, parsed_known, show
from json_lines import cell, once, read_lines
from real_tasks import first_lines, scores_of, text_of
from short_runs import CAUSAL, figures, finetuned, finished, pretrain
from unicloze import verbs
from unicloze.evaluation.metrics.registry import metric
from unicloze.recipes import parse_options

RESULTS = Path(__file__).parent / "results" / "encoder_to_both.jsonl"
ROWS: Mapping[str, tuple[str, str, int]] = {
    "a": ("as it is", "", 3),
    "b": ("+ AE", "unilmv2-ablation-ae", 3),
    "c": ("+ PAR", "unilmv2-ablation-par", 1),
    "d": ("+ AE+PAR", "unilmv2-ablation-ae-par", 3),
    "e": ("+ left-to-right", "unilmv2-ablation-ae", 1),
    "f": ("+ AE+PAR, gently", "unilmv2-ablation-ae-par", 3),
}
"""What is added to the encoder, its recipe, and the seeds of fine-tuning."""
RATES = {"f": 2e-4}
"""Learning rates of the encoder other than `--rate`: in row f that of `auto`, which keeps more (`kept_vectors.py`)."""
AUTO = {
    "training.learning_rate": "auto",
    "training.batch_size": 16,
    "training.precision": "fp32",
}
TASKS: Mapping[str, tuple[str, Mapping[str, Any], str, str]] = {
    "sst-2": ("glue-sst-2", {"finetuning.epochs": 3}, "accuracy", "SST-2, accuracy"),
    "sts-b": ("glue-sts-b", {"finetuning.epochs": 3}, "pearson", "STS-B, Pearson"),
    "questions": (
        "squad-question-generation",
        {"finetuning.epochs": 1, "task.fields": {"answer": "answers.0", "target": "question"}},
        "rouge_l", "questions, ROUGE-L",
    ),
    "summaries": (
        "xsum",
        {"finetuning.epochs": 3, "task.fields": {"target": "target.0"}, "task.metric_options": {}},
        "rougeLsum", "summaries, ROUGE-Lsum",
    ),
}  # fmt: skip
"""The recipe of each task, its settings, its score and title."""
LEADS = 1, 3
"""Sentences of an abstract that stand as its summary."""


def continued(row: str, given: argparse.Namespace) -> dict[str, Any]:
    """Continue the encoder with the objective of a row; the new head has its own rate."""
    text = given.prepared or given.out / "data"
    if given.prepared is None:
        verbs.prepare(
            "unilmv2-ablation-ae", text, quiet=True,
            overrides={"data.corpus": given.corpus, "tokenizer.path": str(given.tokenizer or given.model)},
        )  # fmt: skip
    objective = {f"objective.{key}": value for key, value in CAUSAL.items()} if row == "e" else {}
    common = {
        "data.prepared": str(text), "data.window": given.window, "training.batch_size": given.batch_size,
        "training.micro_batch_size": given.batch_size, "training.device": given.device, "training.precision": "fp32",
        "training.threads": 1, "training.schedule": "linear", "training.clip_norm": 1.0, "training.evaluate_windows": 256,
        **objective, **given.settings,
    }  # fmt: skip
    run = given.out / row
    own = {
        "training.steps": given.steps, "training.warmup_steps": max(1, given.steps // 10),
        "training.evaluate_every": max(1, given.steps // 4), "training.learning_rate": RATES.get(row, given.rate),
        "training.head_learning_rate": given.head_rate,
    }  # fmt: skip
    pretrain(ROWS[row][1], run, init=given.model, overrides={**common, **own})
    return figures(run)


def files_of(task: str, given: argparse.Namespace, folder: Path) -> tuple[Path, Path] | None:
    """Training and test file of a task; None without its option."""
    if task in ("sst-2", "sts-b"):
        if given.glue is None:
            return None
        if task == "sts-b":
            return given.glue / "STS-B/sts-train.csv.gz", given.glue / "STS-B/sts-dev.csv.gz"
        lines = text_of(given.glue / "SST-2/train.tsv.gz").splitlines()[: given.phrases + 1]
        (folder / "sst-2.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return folder / "sst-2.tsv", given.glue / "SST-2/test.tsv.gz"
    files = given.questions if task == "questions" else given.abstracts
    if files is None:
        return None
    counts = {"train": given.pairs, "test": given.test_pairs}
    parts = [
        first_lines(file, folder, f"{task}-{side}", counts[side]) for file, side in zip(files, counts, strict=True)
    ]
    return parts[0], parts[1]


def tuned(row: str, task: str, files: tuple[Path, Path], seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune a row's model on a task."""
    recipe, settings, score, _ = TASKS[task]
    model = given.model if row == "a" else given.out / row
    if row != "a" and not finished(model):  # its line is of another machine
        continued(row, given)
    lengths = (
        {"generation.max_source": given.source} if given.source and recipe in ("xsum", TASKS["questions"][0]) else {}
    )
    found = finetuned(
        recipe, model, files, {**AUTO, **settings, **lengths, "training.device": given.device, "training.seed": seed}
    )
    return {"score": round(found["scores"][score], 2), **found}


def lead(test: Path, count: int) -> dict[str, Any]:
    """Scores of the first sentences of each source as its summary."""
    records = [json.loads(line) for line in test.read_text(encoding="utf-8").splitlines()]
    said = [" ".join(record["source"][:count]) for record in records]
    scores = scores_of({"rouge": metric("rouge")(said, [record["target"][:1] for record in records])})
    return {"score": round(scores[TASKS["summaries"][2]], 2), "scores": scores, "seconds": 0.0}


def measure(given: argparse.Namespace) -> None:
    """Do what is missing and write its lines."""
    for row in given.rows if (given.corpus or given.prepared) and given.model else ():
        if row != "a":
            once(given.lines, {"row": row, "what": "text"}, functools.partial(continued, row, given))
    done = {line["row"] for line in read_lines(given.lines) if line["what"] == "text"} | {"a"}
    for task in given.tasks if given.model else ():
        with tempfile.TemporaryDirectory() as place:
            if (files := files_of(task, given, Path(place))) is None:
                continue
            for row in (row for row in given.rows if row in done):
                for seed in range(min(given.seeds, ROWS[row][2])):
                    key = {"row": row, "what": task, "seed": seed}
                    once(given.lines, key, functools.partial(tuned, row, task, files, seed, given))
            for count in LEADS if task == "summaries" else ():
                once(
                    given.lines,
                    {"row": f"lead {count}", "what": task, "seed": 0},
                    functools.partial(lead, files[1], count),
                )


def as_text(lines: Sequence[Mapping[str, Any]], seeds: int = 3) -> str:
    """The table of what is measured, and what is missing."""
    values: dict[tuple[str, str], dict[int, float]] = {}
    for line in lines:
        if line["what"] != "text":
            values.setdefault((line["row"], line["what"]), {})[line["seed"]] = line["score"]
    texts = {line["row"]: line for line in lines if line["what"] == "text"}
    heads = ["row", "perplexity", "trigram", *(title for *_, title in TASKS.values())]
    rows = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for row in [*ROWS, *(f"lead {count}" for count in LEADS)]:
        if row not in texts and not any(row == known for known, _ in values):
            continue
        cells = [""] * 2
        if row in texts:
            cells = [
                ", ".join(f"{name} {value:,.1f}" for name, value in texts[row][what].items())
                for what in ("perplexity", "trigram")
            ]
        base = {task: None if row == "a" or row not in ROWS else values.get(("a", task)) for task in TASKS}
        cells += [cell(values.get((row, task), {}), base[task]) for task in TASKS]
        rows.append("| " + " | ".join([f"{row} {ROWS[row][0]}" if row in ROWS else row, *cells]) + " |")
    absent = [f"{row} text" for row in ROWS if row != "a" and row not in texts]
    for row, task in ((row, task) for row in ROWS for task in TASKS):
        have, wanted = len(values.get((row, task), {})), min(seeds, ROWS[row][2])
        absent += [f"{row} {task} ({have} of {wanted})"] if have < wanted else []
    said = f"\nNot yet measured: {', '.join(absent)}.\n" if absent else ""
    return "\n".join(rows) + "\n" + said


def tables() -> str:
    """What is measured, as text of a page."""
    return as_text(read_lines(RESULTS))


def main() -> None:
    """Run what is missing, print the table and write it into the page."""
    parser = options(__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--tokenizer", type=Path, help="folder of the model's tokenizer; default: the model's")
    parser.add_argument("--corpus", nargs="+")
    parser.add_argument("--prepared", type=Path)
    parser.add_argument("--glue", type=Path)
    parser.add_argument("--questions", type=Path, nargs=2)
    parser.add_argument("--abstracts", type=Path, nargs=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", nargs="+", choices=tuple(ROWS), default=list(ROWS))
    parser.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=list(TASKS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lines", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, help="write the table into this page")
    parser.add_argument("--rate", type=float, default=6e-4, help="learning rate of the encoder")
    parser.add_argument("--head-rate", type=float, default=5e-3, help="learning rate of the new head")
    numbers = {
        "steps": 500, "batch-size": 16, "window": 128, "seeds": 3, "phrases": 6400, "pairs": 3200, "test-pairs": 500,
        "source": 200, "target": 40,
    }  # fmt: skip
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    small = "--steps 2 --seeds 1 --window 32 --phrases 8 --pairs 4 --test-pairs 2 --source 16 --target 8"
    given, extra = parsed_known(parser, f"{small} --rows a d")
    given.settings = parse_options(extra)
    if (given.corpus or given.prepared) and given.out is None:
        parser.error("--corpus and --prepared need --out")
    measure(given)
    show(as_text(read_lines(given.lines), given.seeds), given.page, Path(__file__))


if __name__ == "__main__":
    main()

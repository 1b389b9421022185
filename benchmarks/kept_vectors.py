"""What continued pre-training leaves of an encoder's vectors: search by them, after AE+PAR at several rates.

    python benchmarks/kept_vectors.py --model MINILM --data FOLDER --prepared PREPARED --out FOLDER [--steps 100]
        [--batch-size 32] [--threads 2] [--page FILE]
    python benchmarks/kept_vectors.py                                           # only the table, of what is measured

Each way continues MODEL, an encoder without a head for tokens, on the same windows in the same order; `head first` trains
the new head alone before. FOLDER has `qa/squad-dev-v1.1.from-explorer.json.gz` and `summarization/scitldr-A_dev.jsonl.gz`:
each of 300 questions has to find its paragraph among 300, and each of 300 summaries its abstract, by the cosine of their
vectors or of their TF-IDF. FILE gets a JSON line for each way; the same command continues after a stop. Dotted settings apply
to all.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gzip
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from frame import options, parsed_known, show
from json_lines import once, read_lines
from short_runs import figures, pretrain
from unicloze import verbs
from unicloze.interop.read import open_model
from unicloze.recipes import parse_options

RESULTS = Path(__file__).parent / "results" / "kept_vectors.jsonl"
RECIPE = "unilmv2-ablation-ae-par"
WAYS: Mapping[str, Mapping[str, Any]] = {
    "6e-4, head 5e-3": {"training.learning_rate": 6e-4, "training.head_learning_rate": 5e-3},
    "2e-4, head 5e-3": {"training.learning_rate": 2e-4, "training.head_learning_rate": 5e-3},
    "1e-4, head 5e-3": {"training.learning_rate": 1e-4, "training.head_learning_rate": 5e-3},
    "1e-4, head first": {"training.learning_rate": 1e-4, "training.head_learning_rate": 1e-3},
}  # fmt: skip
"""How the encoder is continued. The second is what `--recipe auto` chooses."""
PAIRS = 300
Pairs = tuple[list[str], list[str]]


def questions(folder: Path) -> Pairs:
    """The first question of each sixth paragraph, and the paragraph."""
    with gzip.open(folder / "qa" / "squad-dev-v1.1.from-explorer.json.gz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    found = {part["context"]: part["qas"][0]["question"] for each in articles for part in each["paragraphs"][::6]}
    return list(found.values())[:PAIRS], list(found)[:PAIRS]


def summaries(folder: Path) -> Pairs:
    """The first summary of each abstract, and the abstract."""
    with gzip.open(folder / "summarization" / "scitldr-A_dev.jsonl.gz", "rt", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    found = {" ".join(record["source"]): record["target"][0] for record in records}
    return list(found.values())[:PAIRS], list(found)[:PAIRS]


SEARCHES = {"questions": questions, "summaries": summaries}


def found_first(asked: np.ndarray[Any, Any], texts: np.ndarray[Any, Any]) -> float:
    """Percent of the rows whose own text is nearest by cosine; a tie counts as wrong."""
    one, other = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (asked, texts))
    nearness = one @ other.T
    return round(100 * float(np.mean((nearness >= np.diag(nearness)[:, None]).sum(axis=1) == 1)), 1)


def searched(model: Path, given: argparse.Namespace) -> dict[str, float]:
    """How often each search finds the right text first; longer texts are read in windows of the same length by all models."""
    found, opened = {}, open_model(model)
    reader = dataclasses.replace(opened, recipe=opened.recipe.changed("data", window=given.window))
    for name, pairs in SEARCHES.items():
        asked, texts = pairs(given.data)
        rows = np.array(list(verbs.embed(reader, asked + texts)))
        found[name] = found_first(rows[: len(asked)], rows[len(asked) :])
    return found


def by_words(folder: Path) -> dict[str, float]:
    """The same by TF-IDF of the texts' words."""
    text = importlib.import_module("sklearn.feature_extraction.text")
    found = {}
    for name, pairs in SEARCHES.items():
        asked, texts = pairs(folder)
        words = text.TfidfVectorizer(sublinear_tf=True).fit(texts)
        found[name] = found_first(words.transform(asked).toarray(), words.transform(texts).toarray())
    return found


def continued(way: str, given: argparse.Namespace) -> dict[str, Any]:
    """Continue the encoder, after its head if that is asked for."""
    common = {
        "data.prepared": str(given.prepared), "data.window": given.window, "data.segments": 1,
        "training.batch_size": given.batch_size, "training.micro_batch_size": given.batch_size,
        "training.precision": "fp32", "training.device": "cpu", "training.threads": given.threads,
        "training.schedule": "linear", "training.clip_norm": 1.0, "training.evaluate_windows": 128,
        "model.dropout": 0.0, "model.attention_dropout": 0.0, **given.settings,
    }  # fmt: skip

    def schedule(steps: int) -> dict[str, Any]:
        return {"training.steps": steps, "training.warmup_steps": steps // 10}

    start = given.model
    if "head first" in way:
        start = given.out / "head"
        alone = {"training.frozen": ["backbone"], "training.learning_rate": 3e-3, **schedule(max(1, given.steps // 2))}
        pretrain(RECIPE, start, init=given.model, overrides={**common, **alone})
    run = given.out / way.replace(", ", "_").replace(" ", "-")
    own = {**schedule(given.steps), **WAYS[way]}
    pretrain(RECIPE, run, init=start, overrides={**common, **own})
    return {**figures(run), "search": searched(run, given)}


def as_text(lines: list[dict[str, Any]]) -> str:
    """The table of what is measured."""
    heads = ["way", "text tokens", "AE (trigram)", "PAR (trigram)", *SEARCHES]
    rows = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for line in lines:
        cells = [f"{line['text_tokens'] / 1e6:.2f} M" if "text_tokens" in line else ""]
        cells += [
            f"{line['perplexity'][name]:,.0f} ({line['trigram'][name]:,.0f})"
            if name in line.get("perplexity", {})
            else ""
            for name in ("ae", "par")
        ]
        cells += [f"{line['search'][name]:.1f}" for name in SEARCHES]
        rows.append("| " + " | ".join([line["way"], *cells]) + " |")
    return "\n".join(rows) + "\n"


def tables() -> str:
    """What is measured, as text of a page."""
    return as_text(read_lines(RESULTS))


def main() -> None:
    """Run what is missing, print the table and write it into the page."""
    parser = options(__doc__)
    for name in ("model", "data", "prepared", "out", "page"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--lines", type=Path, default=RESULTS)
    parser.add_argument("--ways", nargs="+", choices=tuple(WAYS), default=list(WAYS))
    for name, default in (("steps", 100), ("batch-size", 32), ("window", 128), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given, extra = parsed_known(parser, "--steps 2 --batch-size 4 --window 32 --threads 1")
    given.settings = parse_options(extra)
    if given.model and (given.data is None or given.prepared is None or given.out is None):
        parser.error("--model needs --data, --prepared and --out")
    if given.model:
        once(given.lines, {"way": "TF-IDF"}, lambda: {"search": by_words(given.data)})
        once(given.lines, {"way": "as it is"}, lambda: {"search": searched(given.model, given)})
        for way in given.ways:
            once(given.lines, {"way": way}, functools.partial(continued, way, given))
    show(as_text(read_lines(given.lines)), given.page, Path(__file__))


if __name__ == "__main__":
    main()

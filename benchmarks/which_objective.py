"""Objectives at equal compute, each alone and after a causal phase, on one backbone and one text.

    python benchmarks/which_objective.py --corpus FILE... --blimp ARCHIVE --glue FOLDER --out FOLDER [--budget flops=5e12]
    python benchmarks/which_objective.py [--out FOLDER]                          # only the table, of what FOLDER holds
    python benchmarks/which_objective.py --prepared FOLDER                       # the trigram of that text anew

Every run has the sizes, tokenizer and training settings of `quickstart`, and the same budget. A name that ends in
`-after-causal` trains left-to-right prediction for a third of its steps first, as `quickstart` does. The noise is measured
with three seeds of two of them, the others have one. The same command continues after a stop.

The results go to `benchmarks/results/which_objective.json`. `noise` there is, for each measure, the larger standard
deviation of the two that have three seeds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from json_lines import evenly_spaced
from short_runs import CAUSAL
from unicloze import verbs
from unicloze.comparison.runs import counted
from unicloze.objectives import Ability
from unicloze.pretraining.count_baselines import MOST_WORDS, ranks_by_counts
from unicloze.pretraining.data import build_sampler
from unicloze.recipes import load_recipe
from unicloze.report.history import History
from unicloze.text.counts import content_words, open_counts
from unicloze.text.prepare import Prepared

RESULTS = Path(__file__).parent / "results" / "which_objective.json"
ALONE = (
    "unilmv2-ablation-ae", "unilmv2-ablation-par", "unilmv2-ablation-ae-par", "unilmv2-ablation-ae-ar",
    "unilmv2-ablation-ar", "unilm-v1-base", "electra-base", "xlnet-base", "spanbert-base", "gpt", "mpnet-base", "mdlm-base",
)  # fmt: skip
CANNOT_CHANGE = {"gpt": "it is causal itself", "electra-base": "its generator needs every phase"}
"""Recipes without a causal phase before them, and why."""
REPEATED = "gpt", "unilmv2-ablation-ae-par-after-causal"
"""Recipes whose noise is measured."""
AFTER = "-after-causal"
DISTINCT = 2.8
"""Standard deviations between two runs that chance explains in 1 of 20 cases: 1.96 times the square root of 2."""
LOWER = "ae", "par", "causal"
"""Measures of which lower is better."""
COLUMNS = {
    "ae": "AE perplexity", "par": "PAR perplexity", "causal": "causal perplexity",
    "words_both": "content words %", "words_left": "from the left %", "blimp_pseudo": "BLiMP, PLL %",
    "blimp_chain": "BLiMP, chain rule %", "glue-sst-2": "SST-2 %",
}  # fmt: skip


def recipes_in(folder: Path) -> dict[str, str]:
    """The recipes by name, of which those after a causal phase are written into the folder."""
    found = {name: name for name in ALONE}
    folder.mkdir(parents=True, exist_ok=True)
    for base in ALONE:
        if base not in CANNOT_CHANGE:
            name = base + AFTER
            recipe = {
                "base": base,
                "name": name,
                "training": {"phases": [{"share": 1, "objective": CAUSAL}, {"share": 2}]},
            }
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
            found[name] = str(folder / f"{name}.yaml")
    return found


def train(options: argparse.Namespace) -> None:
    """Train and measure every run, those of several seeds first."""
    recipes = recipes_in(options.out / "recipes")
    phrases = evenly_spaced(options.glue / "SST-2" / "train.tsv.gz", options.out / "sst2-train.tsv", 3200, header=True)
    for seeds, names in ((3, REPEATED), (1, [name for name in recipes if name not in REPEATED])):
        verbs.compare(
            [recipes[name] for name in names], options.budget, seeds=seeds, out=options.out / f"seeds-{seeds}",
            like="quickstart", blimp=options.blimp, blimp_limit=50,
            probes=[("glue-sst-2", phrases, options.glue / "SST-2" / "test.tsv.gz")],
            probe_overrides={"finetuning.epochs": 1, "training.learning_rate": 1e-3, "training.batch_size": 32},
            overrides={"data.corpus": options.corpus, "tokenizer.lowercase": False, "training.threads": 1,
                       "training.start": "random"},
        )  # fmt: skip


def runs_of(folder: Path) -> list[dict[str, Any]]:
    """Each finished run's scores."""
    found = []
    for file in sorted(folder.glob("seeds-*/*/seed-*/scores.json")):
        known, run = json.loads(file.read_text(encoding="utf-8")), file.parent
        history = History.read(run)
        words = history.content_words
        scores = {
            **{name: None if value is None else math.exp(value) for name, value in known["nats"].items()},
            "bits_per_byte": known["bits_per_byte"],
            **({f"words_{words['sees']}": 100 * words["top_5"]} if words else {}),
            **{name: value for values in known["scores"].values() for name, value in values.items()},
            **{name: probe["score"] for name, probe in known["probes"].items()},
        }
        found.append({
            "recipe": run.parent.name,
            "seed": int(run.name.removeprefix("seed-")),
            "steps": known["steps"],
            "text_tokens": round(history.curve("text_tokens")[-1][1]),
            "scores": {name: round(value, 3) for name, value in scores.items() if value is not None},
        })  # fmt: skip
    return found


def counts_of(folder: Path) -> dict[str, float]:
    """What a Kneser-Ney trigram reaches: perplexities by measure, and content words in the top five by side."""
    recipe, prepared = load_recipe("quickstart"), Prepared.load(folder)
    recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, segments=1))
    counts, tokenizer = open_counts(prepared, prepared.train), prepared.tokenizer
    windows = build_sampler(recipe, prepared, heldout=True).sequential(recipe.training.evaluate_windows)
    found = {name: perplexities["trigram"] for name, perplexities in counted(counts, windows).items()}
    words = content_words(prepared.heldout, counts, tokenizer, longest=recipe.data.window - 2, most=MOST_WORDS)
    sides: Mapping[str, Ability] = {"both": "cloze", "left": "causal"}
    for side, asking in sides.items():
        found[f"words_{side}"] = 100 * float((ranks_by_counts(counts, words, asking) < 5).mean())
    return {name: round(value, 2) for name, value in found.items()}


def noise_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The larger standard deviation over seeds of each measure."""
    found: dict[str, float] = {}
    for recipe in REPEATED:
        each = [run["scores"] for run in runs if run["recipe"] == recipe]
        for name in each[0] if len(each) > 1 else ():
            found[name] = round(max(found.get(name, 0.0), statistics.stdev(scores[name] for scores in each)), 3)
    return found


def table(results: Mapping[str, Any]) -> str:
    """Means over seeds as Markdown, each alone → after a causal phase; those within the noise of the best are bold."""
    runs = results["runs"]
    columns = {name: title for name, title in COLUMNS.items() if any(name in run["scores"] for run in runs)}
    best = {name: _best(name, _means(name, runs).values()) for name in columns}

    def shown(name: str, recipe: str) -> str:
        mean = _means(name, runs).get(recipe)
        if mean is None:
            return "-"
        near = abs(mean - best[name]) <= DISTINCT * results["noise"].get(name, 0.0)
        return f"**{mean:,.1f}**" if near else f"{mean:,.1f}"

    lines = ["| objective | " + " | ".join(columns.values()) + " |", "|---|" + "---:|" * len(columns)]
    for recipe in ALONE:
        pairs = [[shown(name, recipe + end) for end in ("", AFTER)] for name in columns]
        cells = [
            alone if recipe in CANNOT_CHANGE or alone == after == "-" else f"{alone} → {after}"
            for alone, after in pairs
        ]
        lines.append(f"| {recipe} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _means(name: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean over seeds of a measure, by recipe."""
    each: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        if name in run["scores"]:
            each[run["recipe"]].append(run["scores"][name])
    return {recipe: statistics.fmean(values) for recipe, values in each.items()}


def _best(name: str, values: Iterable[float]) -> float:
    return min(values) if name in LOWER else max(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", nargs="+", help="text to train on")
    parser.add_argument("--blimp", type=Path)
    parser.add_argument("--glue", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--budget", default="flops=5e12")
    parser.add_argument("--prepared", type=Path, help="the prepared text, to count again (default: OUT/seeds-3/data)")
    options = parser.parse_args()
    if options.corpus:
        train(options)
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    if options.out is not None:
        runs = runs_of(options.out)
        results = {"budget": options.budget, "counts": {}, "noise": noise_of(runs), "runs": runs}
        options.prepared = options.prepared or options.out / "seeds-3" / "data"
    if options.prepared is not None:
        RESULTS.write_text(
            json.dumps({**results, "counts": counts_of(options.prepared)}, indent=1) + "\n", encoding="utf-8"
        )
    print(table(json.loads(RESULTS.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()

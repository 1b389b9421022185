"""Writes the package models/unicloze-small-en from a finished run and the figures of evaluate.py.

python models/training/unicloze-small-en/package.py RUN
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from unicloze.finetuning.checks import model_fingerprint
from unicloze.interop.export import write_export
from unicloze.interop.opening import open_model
from unicloze.interop.package import package_format
from unicloze.report.learning import draw_learning
from unicloze.run_files import LEDGER
from unicloze.training.ledger import read_ledger

HERE = Path(__file__).resolve().parent
NAME = HERE.name
RESULTS = HERE.parents[2] / "benchmarks" / "results"
TRIGRAMS, PROBES = RESULTS / "trigram_blimp.json", HERE / "probes.jsonl"
SOURCES = Path("models") / "training" / NAME
DATA = f"""\
- {{books}} books, originals in English by {{authors}} authors who died in 1955 or earlier, so that their copyright has ended
  where it lasts for 70 years after death: [{SOURCES}/books.yaml](../training/{NAME}/books.yaml) names authors and years.
- {{sections}} sections of {{textbooks}} OpenStax textbooks, © OpenStax, Rice University, licensed under
  [CC BY 4.0](https://creativecommons.org/licenses/by/4.0/), free at openstax.org. Their text was changed: it was split
  into sections, and figures and formatting were removed. The books: {{titles}}.

The weights are licensed like unicloze (Apache-2.0). No other text was used, and no text of a benchmark."""
LIMITS = """\
- It knows English of old novels and of textbooks. Names, events and words of the last decades are missing, and the novels
  hold views of their time.
- It is small, and has read three fifths of its text once: it fills blanks and judges sentences; what it generates is
  fluent for a few words. It knows few facts.
- Use it to try unicloze, as a start for `--init` on your own English text, and as a baseline."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="train.jsonl of corpus.py")
    asked = parser.parse_args()
    loaded = open_model(asked.run)
    events = list(read_ledger(asked.run / LEDGER))
    evaluation = json.loads((HERE / "evaluation.json").read_text(encoding="utf-8"))
    if evaluation["step"] != loaded.step:
        raise SystemExit(f"evaluation.json is of step {evaluation['step']}, and {asked.run} of step {loaded.step}")
    sections = {
        "Data and licence": data(asked.text),
        "How it was trained": training(events),
        "Results": "\n".join([*results(events, evaluation), *probes(model_fingerprint(loaded)[:16])]),
        "What it is bad at": LIMITS,
    }
    (HERE / "learning.svg").write_text(draw_learning(asked.run).to_svg(), encoding="utf-8")
    with (HERE / LEDGER).open("w", encoding="utf-8") as file:
        for event in events:
            if event["event"] in ("step", "evaluate", "resume", "stop", "end"):
                file.write(json.dumps(event) + "\n")
    export = package_format(loaded, NAME, licence="Apache-2.0", sections=sections)
    print(write_export(loaded, export, HERE.parents[1] / NAME))


def data(text: Path) -> str:
    sources = [json.loads(line)["source"] for line in text.read_text(encoding="utf-8").splitlines()]
    textbooks = [source.split(": ")[1] for source in sources if source.startswith("OpenStax: ")]
    books = len(sources) - len(textbooks)
    authors = yaml.safe_load((HERE / "books.yaml").read_text(encoding="utf-8"))
    used = {source.partition(": ")[0] for source in sources} & authors.keys()
    titles = sorted(set(textbooks))
    return DATA.format(
        books=books, authors=len(used), sections=f"{len(textbooks):,}", textbooks=len(titles), titles=", ".join(titles)
    )


def training(events: Sequence[Mapping[str, Any]]) -> str:
    begun = [place for place, event in enumerate(events) if event["event"] == "start"]
    runs = [events[first:last] for first, last in itertools.pairwise([*begun, len(events)])]
    seconds = sum(run[-1]["time"] - run[0]["time"] for run in runs)
    tokens = max(event["text_tokens"] for event in events if event["event"] == "step")
    whole = sum(source["train"]["tokens"] for source in runs[0][0]["lineage"]["sources"])
    planned = {run[0]["recipe"]["training"]["steps"]: run[0]["step"] for run in reversed(runs)}
    changed = [f", planned for {steps:,} steps from step {step:,} on" for steps, step in reversed(planned.items())]
    return "\n".join(
        [
            "```sh",
            f"python {SOURCES}/corpus.py TEXTS --out build/small-en",
            f"unicloze pretrain --recipe {SOURCES}/recipe.yaml --data.corpus build/small-en/train.jsonl --out runs/small-en",
            f"python {SOURCES}/evaluate.py runs/small-en --text build/small-en/report.jsonl --blimp BLIMP",
            "python benchmarks/regret.py --data DATA --models runs/small-en --cells '*/0/once' --records 400 \\",
            f"    --results {SOURCES}/probes.jsonl",
            f"python {SOURCES}/package.py runs/small-en --text build/small-en/train.jsonl",
            "```",
            "",
            f"It read {tokens / 1e6:.1f} M of its {whole / 1e6:.1f} M tokens in {seconds / 3600:.1f} hours on one to two "
            f"processor cores, started {len(runs)} times{''.join(changed)}. Every step "
            f"and evaluation is in [{SOURCES}/{LEDGER}](../training/{NAME}/{LEDGER}).",
            "",
            f"![Held-out perplexity over steps](../training/{NAME}/learning.svg)",
        ]
    )


def results(events: Sequence[Mapping[str, Any]], evaluation: Mapping[str, Any]) -> Iterator[str]:
    yield "On books and textbook sections that chose no setting (perplexity per token; vocabulary 8,192):\n"
    yield "| text | AE | PAR | left to right | bits per byte, left to right |"
    yield "|---|---|---|---|---|"
    for kind, found in evaluation["text"].items():
        shown = [found["perplexity"][name] for name in ("ae", "par", "causal")] + [found["bits_per_byte"]]
        yield f"| {kind} | " + " | ".join("-" if value is None else f"{value:.3g}" for value in shown) + " |"
    words = next(event["content_words"] for event in reversed(events) if event.get("content_words"))
    yield (
        f"\nHeld-out content words among the first five guesses: {words['top_5']:.1%} of {words['words']} "
        f"(counting neighbours: {words['counts_top_5']:.1%})."
    )
    blimp = evaluation["blimp"]
    names = list(blimp["accuracy"])
    floor = json.loads(TRIGRAMS.read_text(encoding="utf-8"))["accuracy"]["ties wrong"]
    yield (
        f"\nBLiMP, {blimp['pairs']:,} pairs of all 67 sets (mean of the sets; ties count as wrong; chance is 50 %, and a "
        f"trigram model of the same text has {floor:.1f} % on all 67,000 pairs):\n"
    )
    yield "| | " + " | ".join({"pseudo": "pseudo-log-likelihood", "chain": "chain rule"}[name] for name in names) + " |"
    yield "|---|" + "---|" * len(names)
    for row, accuracy in {"overall": blimp["accuracy"], **blimp["fields"], **blimp["terms"]}.items():
        yield f"| {row.replace('_', ' ')} | " + " | ".join(f"{accuracy[name]:.1%}" for name in names) + " |"


def probes(start: str) -> Iterator[str]:
    """Scores of fine-tuning from these weights at the chosen rate, beside those of the most common answer."""
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for cell in map(json.loads, PROBES.read_text(encoding="utf-8").splitlines()):
        if cell["start"] == start and cell["factor"] == "once":
            found[cell["task"]].append(cell)
    if not found:
        return
    records = {cell["records"] for cells in found.values() for cell in cells}
    yield f"\nFine-tuned on {', '.join(map(str, records))} records with default settings (`benchmarks/regret.py`):\n"
    yield "| task | score | most common answer | seeds |"
    yield "|---|---|---|---|"
    for task, cells in found.items():
        means = [fmean(cell[name] for cell in cells) for name in ("score", "majority")]
        yield f"| {task} | " + " | ".join(f"{mean:.1f}" for mean in means) + f" | {len(cells)} |"


if __name__ == "__main__":
    main()

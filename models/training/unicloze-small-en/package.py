"""Writes the package models/unicloze-small-en from a finished run and the figures of evaluate.py.

python models/training/unicloze-small-en/package.py RUN --text build/small-en/train.jsonl
python models/training/unicloze-small-en/package.py        # only the results of the card anew, without the run
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

from unicloze.files import LEDGER
from unicloze.finetuning.data import model_fingerprint
from unicloze.interop.export import package_format, write_export
from unicloze.interop.read import open_model
from unicloze.report.charts import draw_learning
from unicloze.training.ledger import read_ledger

HERE = Path(__file__).resolve().parent
NAME = HERE.name
RESULTS = HERE.parents[2] / "benchmarks" / "results"
TRIGRAMS, PROBES = RESULTS / "trigram_blimp.json", HERE / "probes.jsonl"
PACKAGE = HERE.parents[1] / NAME
SOURCES = Path("models") / "training" / NAME
DATA = f"""\
- {{books}} books, originals in English by {{authors}} authors who died in 1955 or earlier, so that their copyright has ended
  where it lasts for 70 years after death: [{SOURCES}/books.yaml](../training/{NAME}/books.yaml) names authors and years.
- {{sections}} sections of {{textbooks}} OpenStax textbooks, © OpenStax, Rice University, licensed under
  [CC BY 4.0](https://creativecommons.org/licenses/by/4.0/), free at openstax.org. Their text was changed: it was split
  into sections, and figures and formatting were removed. The books: {{titles}}.

The weights are licensed like unicloze (Apache-2.0). No other text was used, and no text of a benchmark."""
EVALUATE = f"""\
python {SOURCES}/evaluate.py runs/small-en --prepared runs/small-en/data --text build/small-en/report.jsonl \\
    --other wikitext-2-raw.valid.txt.gz --blimp BLIMP"""
SCHEDULE = """\
The first 733 steps, a third of those planned then, were left to right. At step 2,200 its rate had fallen to zero; it was
continued to step 3,600, with a rate that started again at 39 % of its peak. The commands above start a new run with one
schedule, which gives a similar model but not these weights."""
LIMITS = """\
- It knows English of old novels and of textbooks. Names, events and words of the last decades are rare, since only the
  textbooks hold them, and the novels hold views of their time.
- It is small, and has read three fifths of its text once: it fills blanks and judges sentences; what it generates is
  fluent for a few words. It knows few facts.
- A Kneser-Ney trigram of its training text is ahead of it from left to right and at single missing words, on every text
  measured; the model is ahead in grammar (BLiMP), and on books and encyclopedia where a blank hides several words, since
  this trigram stops at hidden words. The perplexity of one that sums over them is lower by about 17 % on what pre-training
  held out (`benchmarks/hidden_neighbours.py`), so about level with the model there.
- Use it to try unicloze, as a start for `--init` on your own English text, and as a baseline."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--text", type=Path, help="train.jsonl of corpus.py")
    asked = parser.parse_args()
    evaluation = json.loads((HERE / "evaluation.json").read_text(encoding="utf-8"))
    if asked.run is None or asked.text is None:
        card = PACKAGE / "README.md"
        card.write_text(renewed(card.read_text(encoding="utf-8"), evaluation), encoding="utf-8")
        return
    loaded = open_model(asked.run)
    events = list(read_ledger(asked.run / LEDGER))
    if evaluation["step"] != loaded.step:
        raise SystemExit(f"evaluation.json is of step {evaluation['step']}, and {asked.run} of step {loaded.step}")
    sections = {
        "Data and licence": data(asked.text),
        "How it was trained": training(events),
        "Results": "\n".join([*results(evaluation), *probes(model_fingerprint(loaded)[:16])]),
        "What it is bad at": LIMITS,
    }
    (HERE / "learning.svg").write_text(draw_learning(asked.run), encoding="utf-8")
    with (HERE / LEDGER).open("w", encoding="utf-8") as file:
        for event in events:
            if event["event"] in ("step", "evaluate", "resume", "stop", "end"):
                file.write(json.dumps(event) + "\n")
    export = package_format(loaded, NAME, licence="Apache-2.0", sections=sections)
    print(write_export(loaded, export, PACKAGE))


def renewed(card: str, evaluation: Mapping[str, Any]) -> str:
    """The card of the package with the results of this evaluation and its command; those of fine-tuning stay."""
    before, _, after = card.partition(f"python {SOURCES}/evaluate.py ")
    card = before + EVALUATE + "\npython " + after.partition("\npython ")[2]
    for title, text in {"Results": "\n".join(results(evaluation)), "What it is bad at": LIMITS}.items():
        before, heading, after = card.partition(f"\n## {title}\n\n")
        old, following, rest = after.partition("\n\n## ")
        _, tuned, scores = old.partition("\n\nFine-tuned on ")
        card = before + heading + text + tuned + scores + following + rest
    return card


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
    changed = ", then for ".join(
        f"{steps:,} steps" + (f" (from step {step:,} on)" if step else "") for steps, step in reversed(planned.items())
    )
    return "\n".join(
        [
            "```sh",
            f"python {SOURCES}/corpus.py TEXTS --out build/small-en",
            f"unicloze pretrain --recipe {SOURCES}/recipe.yaml --data.corpus build/small-en/train.jsonl --out runs/small-en",
            EVALUATE,
            "python benchmarks/regret.py --data DATA --models runs/small-en --cells '*/0/once' --records 400 \\",
            f"    --results {SOURCES}/probes.jsonl",
            f"python {SOURCES}/package.py runs/small-en --text build/small-en/train.jsonl",
            "```",
            "",
            f"It read {tokens / 1e6:.1f} M of its {whole / 1e6:.1f} M tokens in {seconds / 3600:.1f} hours on one to two "
            f"processor cores, in {len(runs)} sessions. It was planned for {changed}.",
            SCHEDULE,
            f"Every step and evaluation is in [{SOURCES}/{LEDGER}](../training/{NAME}/{LEDGER}).",
            "",
            f"![Held-out perplexity over steps](../training/{NAME}/learning.svg)",
        ]
    )


def results(evaluation: Mapping[str, Any]) -> Iterator[str]:
    yield (
        "On text that chose no setting: perplexity per token (vocabulary 8,192), and in brackets that of an interpolated "
        "Kneser-Ney trigram of the same training text on the same predictions; then the share of single content words that "
        "are among the first five guesses, with all the words around them visible.\n"
    )
    yield "| text | AE | PAR | left to right | bits per byte, left to right | content words |"
    yield "|---|---|---|---|---|---|"
    for kind, found in evaluation["text"].items():
        shown = [
            f"{found['perplexity'][name]:.3g} ({found['counts'][name]['trigram']:.3g})"
            for name in ("ae", "par", "causal")
        ]
        yield f"| {kind} | {' | '.join(shown)} | {found['bits_per_byte']:.3g} | {guessed(found['words'])} |"
    yield (
        f"\nOf the documents that pre-training held out: {guessed(evaluation['words'])} of {evaluation['words']['words']} "
        "content words. AE and PAR hide blanks of several words, and with them the neighbours that a trigram needs."
    )
    blimp = evaluation["blimp"]
    names = list(blimp["accuracy"])
    floor = json.loads(TRIGRAMS.read_text(encoding="utf-8"))["accuracy"]["ties wrong"]
    yield (
        f"\nBLiMP, {blimp['pairs']:,} pairs of all 67 sets (mean of the sets; ties count as wrong; chance is 50 %, and a "
        f"Kneser-Ney trigram of the same text has {floor:.1f} % on all 67,000 pairs):\n"
    )
    yield "| | " + " | ".join({"pseudo": "pseudo-log-likelihood", "chain": "chain rule"}[name] for name in names) + " |"
    yield "|---|" + "---|" * len(names)
    for row, accuracy in {"overall": blimp["accuracy"], **blimp["fields"], **blimp["terms"]}.items():
        yield f"| {row.replace('_', ' ')} | " + " | ".join(f"{accuracy[name]:.1%}" for name in names) + " |"


def guessed(words: Mapping[str, Any]) -> str:
    return f"{words['top_5']:.1%} ({words['counts_top_5']:.1%})"


def probes(start: str) -> Iterator[str]:
    """Scores of fine-tuning from these weights at the chosen rate, beside those of the most common answer."""
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for cell in map(json.loads, PROBES.read_text(encoding="utf-8").splitlines()):
        if cell["start"] == start and cell["factor"] == "once":
            found[cell["task"]].append(cell)
    if not found:
        return
    records = {cell["records"] for cells in found.values() for cell in cells}
    counts = ", ".join(map(str, records))
    yield f"\nFine-tuned on {counts} records at the default rate (`benchmarks/regret.py`, which fits no head first):\n"
    yield "| task | score | most common answer | seeds |"
    yield "|---|---|---|---|"
    for task, cells in found.items():
        means = [fmean(cell[name] for cell in cells) for name in ("score", "majority")]
        yield f"| {task} | " + " | ".join(f"{mean:.1f}" for mean in means) + f" | {len(cells)} |"


if __name__ == "__main__":
    main()

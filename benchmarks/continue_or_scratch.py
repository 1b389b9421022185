"""A small text of a domain: continued from a model that is there, or trained from scratch, in the same time?

    python benchmarks/continue_or_scratch.py --text FILE... [--field FIELD] --init MODEL... --out FOLDER
        [--budgets 10min 30min] [--threads 1] [--results FILE] [--page FILE]
    python benchmarks/continue_or_scratch.py                                    # only the table, of what is measured

Each run is `unicloze pretrain --recipe auto --data.corpus TEXT --budget TIME` with one thread or several, from each MODEL
(`--init`) and from scratch; `auto` chooses everything else. The text is what FIELD of the JSON lines holds, each once. The
runs of a text hold out the same documents. Bits per byte compare models with different tokenizers; perplexities do not. A
tokenizer that lowers capitals leaves less to predict, and one that fits the text helps: compare each start with its own
rival, a Kneser-Ney trigram in the same tokens. FILE gets one JSON line for each run; the same command continues after an
interruption.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from frame import show
from json_lines import once, read_lines
from short_runs import trained
from unicloze.pretraining.budget import Budget

RESULTS = Path(__file__).parent / "results" / "continue_or_scratch.jsonl"


def texts(files: Sequence[Path], field: str, target: Path) -> Path:
    """Write the different texts of a field, whose sentences may be listed, as JSON lines."""
    lines = [line for file in files for line in gzip.decompress(file.read_bytes()).decode().splitlines()]
    found = (json.loads(line)[field] for line in lines)
    joined = dict.fromkeys(text if isinstance(text, str) else " ".join(text) for text in found)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(
        "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in joined), encoding="utf-8"
    )
    return target


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """The runs of each text and budget, the best first, as Markdown."""

    def order(line: Mapping[str, Any]) -> tuple[Any, ...]:
        return line["text"], line.get("threads", 1), Budget.parse(line["budget"]).amount, line["bits_per_byte"]["par"]

    heads = ["text", "cores", "budget", "start", "weights", "text tokens", "AE, bits per byte (trigram)", "PAR",
             "PAR, perplexity (trigram)", "content words, % (trigram)"]  # fmt: skip
    rows = ["| " + " | ".join(heads) + " |", "|---|---:|---|---|" + "---:|" * (len(heads) - 4)]
    for line in sorted(lines, key=order):
        bits, words, perplexity, rival = (
            line[key] for key in ("bits_per_byte", "content_words", "perplexity", "trigram")
        )
        cells = [line["text"], str(line.get("threads", 1)), line["budget"], line["start"]]
        cells += [f"{line['parameters'] / 1e6:.1f} M", f"{line['text_tokens'] / 1e6:.2f} M"]
        for name in ("ae", "par"):
            counted = bits[name] * math.log(rival[name]) / math.log(perplexity[name])
            cells.append(f"{bits[name]:.3f} ({counted:.3f})")
        cells.append(f"{perplexity['par']:,.0f} ({rival['par']:,.0f})")
        cells.append(f"{words['top_5']:.1f} ({words['counts_top_5']:.1f})")
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def tables() -> str:
    """What is measured, as text of a page."""
    return table(read_lines(RESULTS))


def main() -> None:
    """Run what is missing, print the table and write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", nargs="+", type=Path)
    parser.add_argument("--field", default="text")
    parser.add_argument("--init", nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--budgets", nargs="+", default=["10min", "30min"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, help="write the table into this page")
    options = parser.parse_args()
    if options.text and options.out is None:
        parser.error("--text needs --out")
    if options.text:
        name = options.text[0].name.partition(".")[0]
        corpus = texts(options.text, options.field, options.out / name / "text.jsonl")
        overrides = {"data.corpus": [str(corpus)], "training.seed": 1}
        for budget in options.budgets:
            for init in (None, *options.init):
                start = "scratch" if init is None else Path(init).name
                run = options.out / name / f"{start}-{budget}-{options.threads}"
                key = {"text": name, "start": start, "budget": budget, "threads": options.threads}
                once(options.results, key, functools.partial(trained, run, budget, overrides, init, options.threads))
    show(table(read_lines(options.results)), options.page, Path(__file__))


if __name__ == "__main__":
    main()

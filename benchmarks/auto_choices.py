"""Two choices of `--recipe auto` on texts of several languages: the share of the causal phase, and the size of the model.

    python benchmarks/auto_choices.py --texts FILE... --out FOLDER [--budget flops=3e12] [--results FILE]
    python benchmarks/auto_choices.py                                                       # only the table

Each run is `unicloze pretrain --recipe auto --budget BUDGET` with one choice changed: the causal phase takes no step, a third
of them (the recipe's choice) or half, and the model has 2 layers of 128 or 3 of 192. Judged on held-out documents by bits per
byte of PAR and by content words. FILE gets one JSON line for each run; the same command continues after a stop.
"""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import Any

from json_lines import once
from unicloze import verbs
from unicloze.report.history import History

RESULTS = Path(__file__).parent / "results" / "auto_choices.jsonl"
CAUSAL = {"name": "causal", "targets": ["lm"], "visibility": "left_to_right", "mixture": [], "coefficients": {}}
SHARES = {"none": [], "a third": [1, 2], "half": [1, 1]}
"""Steps of the causal phase, and of both."""
SIZES = {"2x128": (2, 128), "3x192": (3, 192)}
CHOICES = (("2x128", "a third"), ("2x128", "none"), ("2x128", "half"), ("3x192", "a third"))


def trained(text: Path, budget: str, size: str, share: str, run: Path) -> dict[str, Any]:
    """Train, and read the figures from the ledger."""
    layers, width = SIZES[size]
    shares = SHARES[share]
    overrides = {
        "data.corpus": [str(text)], "training.threads": 1, "data.window": 64, "training.batch_size": 32,
        "model.num_layers": layers, "model.hidden_size": width, "model.num_heads": width // 32,
        "model.intermediate_size": 4 * width,
        "training.phases": [{"share": shares[0], "objective": CAUSAL}, {"share": shares[1]}] if shares else [],
    }  # fmt: skip
    result = verbs.pretrain("auto", run, budget=budget, quiet=True, overrides=overrides)
    if getattr(result, "stopped_by", 0):
        raise SystemExit("stopped; the same command continues")
    history = History.read(run)
    last, words = history.evaluations[history.step], history.content_words
    return {
        "parameters": history.start["parameters"],
        "steps": history.step,
        "text_tokens": round(history.curve("text_tokens")[-1][1]),
        "bits_per_byte": {name: round(value, 3) for name, value in last["bits_per_byte"].items()},
        "perplexity": {name: round(value, 1) for name, value in last["perplexity"].items()},
        "counts": {name: round(value, 1) for name, value in history.counts.items()},
        "content_words": {name: round(100 * words[name], 1) for name in ("top_5", "counts_top_5")} if words else {},
    }


def table(lines: list[dict[str, Any]]) -> str:
    """The results as Markdown: bits per byte of PAR, and content words beside those of counts."""
    heading = [f"{size}, {share}" for size, share in CHOICES]
    rows = ["| text | " + " | ".join(heading) + " |", "|---|" + "---:|" * len(heading)]
    for text in dict.fromkeys(line["text"] for line in lines):
        found = {(line["size"], line["share"]): line for line in lines if line["text"] == text}
        cells = []
        for choice in CHOICES:
            one = found.get(choice)
            words = one["content_words"] if one else {}
            said = f" ({words['top_5']:.1f} %, counts {words['counts_top_5']:.1f} %)" if words else ""
            cells.append(f"{one['bits_per_byte']['par']:.3f}{said}" if one else "-")
        rows.append(f"| {text} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", nargs="+", type=Path, default=[])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--budget", default="flops=3e12")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    for size, share in CHOICES:
        for text in options.texts:
            key = {"text": text.name.partition(".")[0], "size": size, "share": share, "budget": options.budget}
            run = options.out / "-".join((key["text"], size, share.replace(" ", "-")))
            once(options.results, key, functools.partial(trained, text, options.budget, size, share, run))
    print(table([json.loads(line) for line in options.results.read_text(encoding="utf-8").splitlines()]))


if __name__ == "__main__":
    main()

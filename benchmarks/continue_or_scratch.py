"""A small text of a domain: continued from a model that is there, or trained from scratch, in the same time?

    python benchmarks/continue_or_scratch.py --text FILE... --field FIELD --init MODEL --out FOLDER [--budgets 3min 10min]
        [--results FILE]

Each run is `unicloze pretrain --data.corpus TEXT --budget TIME`, with `--init MODEL` or without; `auto` chooses everything
else. The runs hold out the same documents. Bits per byte compare models with different tokenizers; perplexities do not.
FILE gets one JSON line for each run; the same command continues after a stop.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from json_lines import once
from unicloze import verbs
from unicloze.report.history import History

RESULTS = Path(__file__).parent / "results" / "continue_or_scratch.jsonl"


def texts(files: Sequence[Path], field: str, target: Path) -> Path:
    """Write the texts of a field, whose sentences may be listed, as JSON lines."""
    lines = [line for file in files for line in gzip.decompress(file.read_bytes()).decode().splitlines()]
    found = (json.loads(line)[field] for line in lines)
    joined = [text if isinstance(text, str) else " ".join(text) for text in found]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(
        "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in joined), encoding="utf-8"
    )
    return target


def trained(corpus: Path, budget: str, init: str | None, run: Path) -> dict[str, Any]:
    """Train, and read the figures from the ledger."""
    overrides = {"data.corpus": [str(corpus)], "training.threads": 1, "training.seed": 1}
    result = verbs.pretrain("auto", run, init=init, budget=budget, overrides=overrides)
    if getattr(result, "stopped_by", 0):
        raise SystemExit("stopped; the same command continues")
    history = History.read(run)
    last = history.evaluations[history.step]
    words = history.content_words
    return {
        "parameters": history.start["parameters"],
        "steps": history.step,
        "text_tokens": history.curve("text_tokens")[-1][1],
        "bits_per_byte": {name: round(value, 3) for name, value in last["bits_per_byte"].items()},
        "perplexity": {name: round(value, 1) for name, value in last["perplexity"].items()},
        "content_words": {name: round(100 * words[name], 1) for name in ("top_5", "counts_top_5")},
        "verdict": history.verdict,
        "seconds": round(history.seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", nargs="+", type=Path, required=True)
    parser.add_argument("--field", default="text")
    parser.add_argument("--init", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budgets", nargs="+", default=["3min", "10min"])
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    corpus = texts(options.text, options.field, options.out / "text.jsonl")
    for budget in options.budgets:
        for start, init in (("scratch", None), ("continued", options.init)):
            run = options.out / f"{start}-{budget}"
            once(
                options.results,
                {"start": start, "budget": budget},
                functools.partial(trained, corpus, budget, init, run),
            )


if __name__ == "__main__":
    main()

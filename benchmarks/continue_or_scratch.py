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

from json_lines import once
from short_runs import trained

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
    pair = {"text": " ".join(file.name for file in options.text), "init": Path(options.init).name}
    overrides = {"data.corpus": [str(corpus)], "training.seed": 1}
    for budget in options.budgets:
        for start, init in (("scratch", None), ("continued", options.init)):
            run = options.out / f"{start}-{budget}"
            once(
                options.results,
                {**pair, "start": start, "budget": budget},
                functools.partial(trained, run, budget, overrides, init),
            )


if __name__ == "__main__":
    main()

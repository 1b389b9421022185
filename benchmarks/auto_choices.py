"""Choices of `--recipe auto` on several texts: where weights start, the share of the causal phase, and the size of the model.

    python benchmarks/auto_choices.py --texts FILE... --out FOLDER [--flops 3e12] [--results FILE]
    python benchmarks/auto_choices.py --texts FILE... --out FOLDER --flops 1e13 --best 2
    python benchmarks/auto_choices.py                                                       # only the table

Each run is `unicloze pretrain --recipe auto --budget flops=FLOPS` with one choice changed: the causal phase takes no step, a
third of them (the recipe's choice) or half, the model has 2 layers of 128, 3 of 192 or 4 of 256, and it starts at random or
from counts of the text (the recipe's choice). Judged on held-out documents by bits per byte of PAR and by content words.
`--best N` trains only the N choices that were best with the largest smaller budget. FILE gets one JSON line for each run; the
same command continues after a stop.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from json_lines import once, read_lines
from short_runs import CAUSAL, trained

RESULTS = Path(__file__).parent / "results" / "auto_choices.jsonl"
SHARES = {"none": [], "a third": [1, 2], "half": [1, 1]}
"""Steps of the causal phase, and of the second phase."""
SIZES = {"2x128": (2, 128), "3x192": (3, 192), "4x256": (4, 256)}
CHOICES = (
    ("2x128", "a third", "counts"), ("2x128", "a third", "random"), ("2x128", "none", "random"), ("2x128", "half", "random"),
    ("3x192", "a third", "random"), ("4x256", "a third", "random"),
)  # fmt: skip


def settings_of(text: Path, size: str, share: str, start: str) -> dict[str, Any]:
    """The settings of a run."""
    layers, width = SIZES[size]
    shares = SHARES[share]
    return {
        "data.corpus": [str(text)], "data.window": 64, "training.batch_size": 32,
        "model.num_layers": layers, "model.hidden_size": width, "model.num_heads": width // 32,
        "model.intermediate_size": 4 * width, "training.start": start,
        "training.phases": [{"share": shares[0], "objective": CAUSAL}, {"share": shares[1]}] if shares else [],
    }  # fmt: skip


def best(lines: Sequence[dict[str, Any]], text: str, flops: float, count: int) -> list[tuple[str, str, str]]:
    """The choices with the fewest bits per byte on a text, of those with the largest smaller budget."""
    smaller = [line for line in lines if line["text"] == text and line["flops"] < flops]
    if not smaller:
        raise SystemExit(f"--best {count}: no results of {text} with fewer than {flops:g} FLOPs")
    largest = max(line["flops"] for line in smaller)
    compared = [line for line in smaller if line["flops"] == largest]
    compared.sort(key=lambda line: float(line["bits_per_byte"]["par"]))
    return [(line["size"], line["share"], line["start"]) for line in compared[:count]]


def table(lines: Sequence[dict[str, Any]]) -> str:
    """The results as Markdown: bits per byte of PAR, and content words beside those of counts."""
    heading = [f"{size}, {share}{', from counts' * (start == 'counts')}" for size, share, start in CHOICES]
    rows = ["| text | FLOPs | " + " | ".join(heading) + " |", "|---|---:|" + "---:|" * len(heading)]
    for text, flops in dict.fromkeys((line["text"], line["flops"]) for line in lines):
        found = {
            (one["size"], one["share"], one["start"]): one
            for one in lines
            if (one["text"], one["flops"]) == (text, flops)
        }
        cells = []
        for choice in CHOICES:
            one = found.get(choice)
            words = one["content_words"] if one else {}
            said = f" ({words['top_5']:.1f} %, counts {words['counts_top_5']:.1f} %)" if words else ""
            cells.append(f"{one['bits_per_byte']['par']:.3f}{said}" if one else "-")
        rows.append(f"| {text} | {flops:.0e} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", nargs="+", type=Path, default=[])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--flops", type=float, default=3e12)
    parser.add_argument("--best", type=int, help="train only so many choices")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    for text in options.texts:
        name = text.name.partition(".")[0]
        choices = (
            CHOICES if options.best is None else best(read_lines(options.results), name, options.flops, options.best)
        )
        for size, share, start in choices:
            key = {"text": name, "size": size, "share": share, "start": start, "flops": options.flops}
            run = options.out / "-".join((name, size, share.replace(" ", "-"), start, f"{options.flops:.0e}"))
            once(
                options.results,
                key,
                functools.partial(trained, run, f"flops={options.flops}", settings_of(text, size, share, start)),
            )
    print(table(read_lines(options.results)))


if __name__ == "__main__":
    main()

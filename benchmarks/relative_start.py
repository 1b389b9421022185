"""What a relative bias gains that starts at the neighbours (`model.relative_start`), in the quickstart with several seeds.

    python benchmarks/relative_start.py --out FOLDER [--seeds 0 1 2] [--steps 1000] [--corpus FILE...] [--results FILE]
    python benchmarks/relative_start.py                                                     # only the table

The runs of a seed differ in this setting alone: same text, order, rates and steps. FILE gets one JSON line for each run; the
same command continues after a stop.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from json_lines import cell, once, read_lines
from short_runs import figures, pretrain

RESULTS = Path(__file__).parent / "results" / "relative_start.jsonl"
STARTS = ("zero", "neighbours")


def trained(run: Path, overrides: dict[str, Any]) -> dict[str, Any]:
    """The figures of a run of the quickstart with one thread."""
    pretrain("quickstart", run, overrides={"training.threads": 1, **overrides})
    return figures(run)


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Means of each start, and the paired differences from zero."""
    rows = []
    for steps, corpus in sorted({(line["steps"], line["corpus"]) for line in lines}):
        of = {
            (line["seed"], line["start"]): line for line in lines if (line["steps"], line["corpus"]) == (steps, corpus)
        }
        seeds = sorted({seed for seed, _ in of if all((seed, start) in of for start in STARTS)})
        for name, kind, part in (
            ("AE", "perplexity", "ae"),
            ("PAR", "perplexity", "par"),
            ("words, %", "content_words", "top_5"),
        ):
            zero, neighbours = ({seed: of[seed, start][kind][part] for seed in seeds} for start in STARTS)
            if seeds:
                said = f"zero {cell(zero, None)}  neighbours {cell(neighbours, zero)}"
                rows.append(f"{corpus}, {steps} steps, {len(seeds)} seeds, {name}:  {said}")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--corpus", nargs="+", help="default: the quickstart's")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.out is not None:
        corpus = {} if options.corpus is None else {"data.corpus": options.corpus}
        name = "python-docs" if options.corpus is None else " ".join(Path(file).name for file in options.corpus)
        for seed in options.seeds:
            for start in STARTS:
                key = {"corpus": name, "start": start, "seed": seed, "steps": options.steps}
                overrides = {
                    "training.seed": seed,
                    "training.steps": options.steps,
                    "model.relative_start": start,
                    **corpus,
                }
                if options.steps < 100:
                    overrides |= {"training.warmup_steps": 1}
                run = options.out / f"{start}-{seed}-{options.steps}"
                once(options.results, key, functools.partial(trained, run, overrides))
    print(table(read_lines(options.results)))


if __name__ == "__main__":
    main()

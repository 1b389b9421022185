"""What the quickstart gains from where its weights start (`model.relative_start`, `training.start`), with several seeds.

    python benchmarks/starts.py --out FOLDER [--seeds 0 1 2] [--steps 1000] [--corpus FILE...] [--results FILE]
    python benchmarks/starts.py                                                             # only the table

The runs of a seed differ in these settings alone: same text, order, rates and steps. FILE gets one JSON line for each run;
the same command continues after a stop.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from json_lines import cell, once, read_lines
from short_runs import figures, pretrain

RESULTS = Path(__file__).parent / "results" / "starts.jsonl"
STARTS = {
    "zero": {"model.relative_start": "zero", "training.start": "random"},
    "neighbours": {"model.relative_start": "neighbours", "training.start": "random"},
    "counts": {"model.relative_start": "neighbours", "training.start": "counts"},
}
"""Settings of each start; each adds one to that before it."""


def trained(run: Path, overrides: dict[str, Any]) -> dict[str, Any]:
    """The figures of a run of the quickstart with one thread."""
    pretrain("quickstart", run, overrides={"training.threads": 1, **overrides})
    return figures(run)


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Means of each start, and the paired differences from the one before it."""
    rows = []
    for steps, corpus in sorted({(line["steps"], line["corpus"]) for line in lines}):
        of = {
            (line["seed"], line["start"]): line for line in lines if (line["steps"], line["corpus"]) == (steps, corpus)
        }
        for name, kind, part in (
            ("AE", "perplexity", "ae"),
            ("PAR", "perplexity", "par"),
            ("words, %", "content_words", "top_5"),
        ):
            starts = [start for start in STARTS if any(one == start for _, one in of)]
            seeds = sorted({seed for seed, _ in of if all((seed, start) in of for start in starts)})
            values = [{seed: of[seed, start][kind][part] for seed in seeds} for start in starts]
            cells = [
                f"{start} {cell(one, old)}" for start, one, old in zip(starts, values, [None, *values], strict=False)
            ]
            rows.append(f"{corpus}, {steps} steps, {len(seeds)} seeds, {name}:  {'  '.join(cells)}")
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
                    **STARTS[start],
                    **corpus,
                }
                if options.steps < 100:
                    overrides |= {"training.warmup_steps": 1}
                run = options.out / f"{start}-{seed}-{options.steps}"
                once(options.results, key, functools.partial(trained, run, overrides))
    print(table(read_lines(options.results)))


if __name__ == "__main__":
    main()

"""Held-out bits per byte against computation, for several sizes of model on one text.

    python benchmarks/loss_against_compute.py --prepared FOLDER --out FOLDER [--flops 3e11 1e12 3e12 1e13] [--results FILE]
    python benchmarks/loss_against_compute.py --prepared FOLDER --also RUN       # add a finished run on the same text
    python benchmarks/loss_against_compute.py --picture FILE.svg                 # only draw the results, and print them

Each point is a run of its own, whose learning rate falls to zero at its end: a point on the way to a longer budget would be
worse. All have the objective and schedule of `quickstart`, windows of 128 and steps of 2,048 tokens; FLOPs count slots and
predictions. FOLDER holds text that `unicloze prepare` wrote. The file of results gets one JSON line for each run; the same
command continues after a stop.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from json_lines import once, read_lines
from short_runs import figures, trained
from unicloze.files import RECIPE
from unicloze.pretraining.budget import cost_of_a_step
from unicloze.progress import short
from unicloze.recipes import load_recipe
from unicloze.report.charts import Line, line_chart
from unicloze.report.history import Points
from unicloze.report.task_page import STYLES
from unicloze.text.lineage import read_lineage
from unicloze.text.prepare import open_or_prepare

RESULTS = Path(__file__).parent / "results" / "loss_against_compute.jsonl"
SIZES = ((1, 96), (2, 128), (3, 192), (4, 256))
"""Layers and width; heads have 32 dimensions up to a width of 128, and 64 above."""


def settings_of(prepared: Path, layers: int, width: int) -> dict[str, Any]:
    """The settings of a run."""
    heads = width // 64 if width > 128 else width // 32
    return {
        "data.prepared": str(prepared), "data.window": 128, "training.batch_size": 16, "model.num_layers": layers,
        "model.hidden_size": width, "model.num_heads": heads, "model.intermediate_size": 4 * width, "model.dropout": 0.0,
        "training.start": "random",
    }  # fmt: skip


def flops_of(run: Path, prepared: Path) -> float:
    """Floating-point operations of a finished run."""
    recipe = load_recipe(run / RECIPE)
    text = open_or_prepare(recipe.data, recipe.tokenizer, prepared, progress=False)
    with tempfile.TemporaryDirectory() as phrases:
        return cost_of_a_step(recipe, text, Path(phrases), timed=False).flops * recipe.training.steps


def draw(results: Path, target: Path) -> None:
    """Draw a curve for each size."""
    curves: dict[int, Points] = defaultdict(list)
    for line in read_lines(results):
        curves[line["parameters"]].append((line["flops"], line["bits_per_byte"]["par"]))
    lines = [
        Line(name=f"{size / 1e6:.1f}M", points=sorted(points), style=style)
        for (size, points), style in zip(sorted(curves.items()), STYLES, strict=False)
    ]
    picture = line_chart(lines, title="Held-out bits per byte (PAR)", over="FLOPs", logarithmic=True, styled=True)
    target.write_text(picture, encoding="utf-8")


def table(results: Path) -> str:
    """The points as Markdown: bits per byte of PAR by size and FLOPs."""
    lines = read_lines(results)
    budgets = sorted({line["flops"] for line in lines})
    sizes = sorted({(line["parameters"], line["layers"], line["width"]) for line in lines})
    found = {(line["parameters"], line["flops"]): line for line in lines}
    rows = ["| weights | " + " | ".join(f"{flops:.3g}" for flops in budgets) + " |", "|---|" + "---:|" * len(budgets)]
    for weights, layers, width in sizes:
        each = [found.get((weights, flops)) for flops in budgets]
        cells = [
            "-" if one is None else f"{one['bits_per_byte']['par']:.3f} ({short(one['text_tokens'])})" for one in each
        ]
        rows.append(
            f"| {weights / 1e6:.1f} M ({layers} layer{'s' * (layers > 1)} of {width}) | " + " | ".join(cells) + " |"
        )
    return "\n".join(rows)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepared", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--flops", nargs="+", type=float, default=[3e11, 1e12, 3e12, 1e13])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--also", type=Path, help="a finished run on the same text")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args(given)
    text = {} if options.prepared is None else {"text": read_lineage(options.prepared)["fingerprint"][:16]}
    if options.also is not None:
        model = load_recipe(options.also / RECIPE).model
        flops = float(f"{flops_of(options.also, options.prepared):.3g}")
        key = {**text, "layers": model.num_layers, "width": model.hidden_size, "flops": flops, "run": options.also.name}
        once(options.results, key, functools.partial(figures, options.also))
    elif options.prepared is not None:
        for flops in options.flops:
            for layers, width in SIZES:
                run = options.out / f"{layers}x{width}-{flops:.0e}"
                once(
                    options.results,
                    {**text, "layers": layers, "width": width, "flops": flops},
                    functools.partial(trained, run, f"flops={flops}", settings_of(options.prepared, layers, width)),
                )
    if options.picture is not None:
        draw(options.results, options.picture)
        print(table(options.results))


if __name__ == "__main__":
    main()

"""The static HTML page of a comparison: the table, bars of each score, and the curves of every run."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from markupsafe import Markup

from unicloze.comparison.runs import PROBES
from unicloze.comparison.table import NOT_DEFINED, Column, Comparison, caption, cells, columns
from unicloze.report.charts import Line, line_chart
from unicloze.report.frame import render
from unicloze.report.history import History

SIGNS = {"best": "\u2605 ", "near": "\u2248 ", "": ""}
"""Signs for the best value of a column, for values within its spread, and for others."""
Curves = list[tuple[str, list[tuple[str, str]], Markup]]
"""Charts with their titles and legends."""


def page(comparison: Comparison) -> str:
    """The whole page as HTML."""
    heading, *lines = cells(comparison)
    ranks = [ranked(comparison, column) for column in columns(comparison)]
    rows = []
    for i, (name, *line) in enumerate(lines):
        marks = ["", "", *(rank.get(i, "") for rank in ranks)]
        rows.append((i, name, list(zip_longest(line, marks, fillvalue=""))))
    return render(
        "comparison/templates/comparison.html",
        name="Objectives compared",
        window_title="Objectives compared - unicloze",
        status=comparison.budget,
        subtitle=caption(comparison),
        signs=SIGNS,
        heading=heading,
        rows=rows,
        scores=[_bars(comparison, column) for column in columns(comparison)],
        curves=_curves(comparison),
        probes=_probes(comparison) if comparison.probes else None,
    )


def ranked(comparison: Comparison, column: Column) -> dict[int, str]:
    """Rows with the best mean of a score, and rows that differ from it by at most the sum of both deviations."""
    known = {i: spread for i, row in enumerate(comparison.rows) if (spread := row.scores[column.key]) is not None}
    if len(known) < 2:
        return {}
    best = (max if column.higher_is_better else min)(known.values(), key=lambda spread: spread.mean)
    near = {
        i: "near"
        for i, spread in known.items()
        if abs(spread.mean - best.mean) <= (spread.deviation or 0.0) + (best.deviation or 0.0)
    }
    return near | {i: "best" for i, spread in known.items() if spread.mean == best.mean}


def _bars(comparison: Comparison, column: Column) -> tuple[str, bool, list[tuple[int, str, str, float, str]]]:
    """Title, direction and bars of a score, best first: lower is better for perplexities, higher for accuracies.

    A bar has the number of its row, its rank, name, length in percent of the longest, and figure; scores below zero, such as
    correlations, have none.
    """
    known = [(i, row, spread) for i, row in enumerate(comparison.rows) if (spread := row.scores[column.key])]
    known.sort(key=lambda entry: entry[2].mean, reverse=column.higher_is_better)
    most, ranks = max(spread.mean for *_, spread in known), ranked(comparison, column)
    return column.title, column.higher_is_better, [
        (i, ranks.get(i, ""), row.name, 100 * max(0.0, spread.mean) / most if most > 0 else 0.0, column.figure(spread))
        for i, row, spread in known
    ]  # fmt: skip


def _curves(comparison: Comparison) -> Curves:
    """Held-out loss over FLOPs: a panel per target, a line per recipe or part of its mixture (first seed)."""
    panels: dict[str, list[Line]] = {}
    for i, row in enumerate(comparison.rows):
        history, each = History.read(comparison.out / row.name / "seed-0"), row.flops / max(1, row.steps)
        for name in history.evaluated:
            part, _, target = name.rpartition(".")
            points = [(step * each, loss) for step, loss in history.curve("loss", name, evaluated=True)]
            panels.setdefault(target, []).append(_line(i, f"{row.name}, {part}" if part else row.name, points))
    return [
        _panel(f"Held-out loss, {target}, nats per prediction", f"held-out loss of {target} over FLOPs", lines, "FLOPs")
        for target, lines in panels.items()
    ]


def _line(number: int, name: str, points: list[tuple[float, float]]) -> Line:
    return Line(name=name, style=f"c{number % 16}", points=points, labelled=False)


def _panel(heading: str, title: str, lines: list[Line], over: str) -> tuple[str, list[tuple[str, str]], Markup]:
    chart = line_chart(lines, title=title, size=(560, 320), over=over)
    return heading, [(line.classes, line.name) for line in lines], chart


def _probes(comparison: Comparison) -> dict[str, Any]:
    """Settings, cost and score curves of each probe's fine-tuning."""
    keys = dict.fromkeys(key for probe in comparison.probes for key in probe.settings)
    heading = ["probe", "scored by", "training records", "development records"]
    settings, curves = [], []
    for probe in comparison.probes:
        measure = probe.value if probe.value == probe.metric else f"{probe.metric}: {probe.value}"
        cells = [measure, *(f"{count:,}" for count in probe.records), *(f"{probe.settings[key]:g}" for key in keys)]
        settings.append((None, probe.name, [(cell, "") for cell in cells]))
        lines = []
        for i, row in enumerate(comparison.rows):
            if probe.name in row.probes:
                run = History.read(comparison.out / row.name / "seed-0" / PROBES / probe.name)
                lines.append(_line(i, row.name, run.points(probe.metric, probe.value)))
        curves.append(_panel(f"{probe.title} on the development file", probe.title, lines, "step"))
    spent = []
    for i, row in enumerate(comparison.rows):
        costs = [row.probes.get(probe.name) for probe in comparison.probes]
        texts = [(f"{one.flops:.2e}", f"{one.seconds:,.0f}") if one else (NOT_DEFINED,) * 2 for one in costs]
        spent.append((i, row.name, [(text, "") for text in (row.reads, *(text for pair in texts for text in pair))]))
    measures = [f"{probe.name}, {what}" for probe in comparison.probes for what in ("FLOPs", "seconds")]
    return {
        "settings": ([*heading, *(key.rpartition(".")[2].replace("_", " ") for key in keys)], settings),
        "spent": (["recipe", "read, pooled", *measures], spent),
        "curves": curves,
    }

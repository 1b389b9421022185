"""The page about a fine-tuning with several seeds: means, deviations and the scores of each seed."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from unicloze.files import LEDGER
from unicloze.report.components import (
    REPORT,
    card,
    colophon,
    heading_of,
    machine_card,
    origin_of,
    panel,
    recipe_section,
    score_row,
    score_table,
)
from unicloze.report.curves import Line, line_chart
from unicloze.report.frame import frame
from unicloze.report.history import mapping
from unicloze.report.lineage_table import count
from unicloze.report.task_history import TaskRun, headline_of, shown
from unicloze.report.task_page import STYLES, answers_chart, chart_grid, chart_size, samples

MOST_CURVES = len(STYLES)


def seed_folders(folder: Path) -> list[Path]:
    """The run directories in a folder of seeds, ordered by seed; may be empty."""
    ledgers = [path / LEDGER for path in folder.glob("seed-*")]
    found = [ledger.parent for ledger in ledgers if ledger.is_file() and ledger.stat().st_size]
    return sorted(found, key=lambda path: (len(path.name), path.name))


def seeds_page(folder: Path, runs: Sequence[TaskRun], place: Path) -> str:
    """The page of all seeds as HTML, with links to the page of each seed."""
    first = runs[0]
    sections = [
        ("Scores", _scores(runs, place)),
        ("Curves", _curves(runs)),
        ("Predictions on the development file", answers_chart(runs)),
        (f"Samples of {escape(first.history.run.name)}", samples(first)),
        ("Recipe", recipe_section(first.history)),
    ]
    name = heading_of(folder)
    return frame(
        name=name,
        window_title=f"{name} - unicloze report",
        status=f"{len(runs)} seeds",
        subtitle=origin_of(first.history),
        cards=_cards(runs),
        sections=sections,
        footer=colophon(first.history),
    )


def _values(runs: Sequence[TaskRun], metric: str, key: str) -> list[float]:
    """One value at the best checkpoint of every seed that has it."""
    return [values[key] for run in runs if key in (values := run.values(metric))]


def _deviation(values: Sequence[float]) -> float | None:
    """Sample standard deviation; None for a single value or non-finite values."""
    return statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None


def _mean(values: Sequence[float], unit: str) -> str:
    deviation = _deviation(values)
    spread = "" if deviation is None else f" \u00b1 {shown(deviation, unit)}"
    return f"{shown(statistics.fmean(values), unit)}{spread}"


def _cards(runs: Sequence[TaskRun]) -> str:
    first, cards = runs[0], []
    for metric in first.metrics[:3]:
        key = headline_of(metric, first.values(metric))
        values, unit = _values(runs, metric, key), first.unit(metric, key)
        if not values:
            cards.append(card(metric, "-", "not evaluated yet"))
            continue
        ends = f"{shown(min(values), unit)} to {shown(max(values), unit)}"
        deviation, error = _deviation(values), ""
        if deviation is not None:
            error = f", standard error of the mean {shown(deviation / math.sqrt(len(values)), unit)}"
        known = f"{len(values)} of {len(runs)}" if len(values) < len(runs) else f"{len(values)}"
        cards.append(card(f"{key}, mean and deviation", _mean(values, unit), f"{known} seeds, {ends}{error}"))
    records = mapping(first.history.start.get("records"))
    cards += [
        card(
            "training records",
            count(records.get("train")),
            f"{count(records.get('dev'))} to evaluate on; {count(first.history.start.get('parameters'))} parameters",
        ),
        machine_card(first.history),
    ]
    return "".join(cards)


def _scores(runs: Sequence[TaskRun], place: Path) -> str:
    first = runs[0]
    columns = [(metric, key) for metric in first.metrics for key in first.values(metric)]
    if not columns:
        return '<p class="nothing">Nothing was evaluated yet.</p>'
    rows = []
    for run in runs:
        cells = [(run.values(metric).get(key), first.unit(metric, key)) for metric, key in columns]
        said = ["-" if value is None else shown(value, unit) for value, unit in cells]
        name = escape(run.history.run.name)
        best = "-" if run.best_step is None else f"{run.best_step:,}"
        link = quote(os.path.relpath(run.history.run / REPORT, place))
        rows.append(score_row([f'<a href="{link}">{name}</a>'], [best, *said]))
    means = [_mean(values, first.unit(*column)) if (values := _values(runs, *column)) else "-" for column in columns]
    rows.append(score_row(["mean and deviation"], ["", *means], bold=True))
    keys = [key if len(first.metrics) == 1 else f"{metric}: {key}" for metric, key in columns]
    table = score_table(["seed", "best step", *keys], rows, names=1)
    lead = "Each seed at its own best step; in percent unless a unit is given; sample standard deviation."
    return f'<p class="lead">{lead}</p><div class="panel scroll">{table}</div>'


def _curves(runs: Sequence[TaskRun]) -> str:
    """Charts with one line per seed, for the first few seeds."""
    drawn = list(zip(runs, STYLES, strict=False))[:MOST_CURVES]
    panels, targets = [], runs[0].history.trained
    size = chart_size(len(runs[0].metrics) + len(targets))
    for metric in runs[0].metrics:
        key = headline_of(metric, runs[0].values(metric))
        lines = [Line(name=run.history.run.name, style=style, points=run.points(metric, key)) for run, style in drawn]
        panels.append(
            panel(
                f"Development {key or metric}",
                line_chart(lines, title=f"{key} over steps by seed", width=size[0], height=size[1]),
            )
        )
    for target in targets:
        lines = [
            Line(name=run.history.run.name, style=style, points=run.history.curve("loss", target), smooth=True)
            for run, style in drawn
        ]
        panels.append(
            panel(
                f"Training loss, {target}",
                line_chart(lines, title=f"loss of {target} over steps by seed", width=size[0], height=size[1]),
            )
        )
    note = f'<p class="note">The first {MOST_CURVES} seeds.</p>' if len(runs) > MOST_CURVES else ""
    return chart_grid(panels) + note

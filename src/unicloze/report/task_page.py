"""The page about a fine-tuning run: scores, curves, predictions and errors."""

from __future__ import annotations

import itertools
import math
import os
import shlex
import statistics
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from unicloze.evaluation.metrics.registry import METRICS
from unicloze.files import BEST, CHECKPOINTS, DEV_PREDICTIONS, LEDGER
from unicloze.report.charts import Line, by_class, confusion, deviations, lengths, line_chart, scatter
from unicloze.report.frame import (
    REPORT,
    card,
    colophon,
    count,
    frame,
    heading_of,
    machine_card,
    origin_of,
    panel,
    recipe_section,
    score_row,
    score_table,
    status_of,
    time_card,
)
from unicloze.report.history import Event, TaskRun, headline_of, mapping, number, sequence, shown

STYLES = "s-plain", "s-par", "s-ae", "s-lm", "s-pair", "s-rtd"
"""Style classes of the curves in one chart."""
SMALL, LARGE = (380, 220), (560, 300)
"""Width and height of a chart that takes a third or half of the page."""


def task_page(run: TaskRun) -> str:
    """The page of one run as HTML."""
    history = run.history
    name = heading_of(history.run)
    errors = {metric: run.errors(metric) for metric in run.metrics}
    sections = [
        ("Scores", scores(run, errors)),
        ("Curves", _curves(run)),
        ("Predictions on the development file", answers_chart([run])),
        ("Samples", samples(run)),
        ("Use it", _commands(run)),
        ("Recipe", recipe_section(history)),
    ]
    return frame(
        name=name,
        window_title=f"{name} - unicloze report",
        status=status_of(history),
        subtitle=origin_of(history),
        verdict=history.verdict,
        cards=_cards(run, errors),
        sections=sections,
        footer=colophon(history),
    )


def _cards(run: TaskRun, errors: Mapping[str, Mapping[str, float]]) -> str:
    history, start = run.history, run.history.start
    records = mapping(start.get("records"))
    cards = []
    for metric in run.metrics[:3]:
        values = run.values(metric)
        key = headline_of(metric, values)
        if not key:
            cards.append(card(metric, "-", "not evaluated yet"))
            continue
        error = errors.get(metric, {}).get(key)
        spread = "" if error is None else f"\u00b1 {shown(error, run.unit(metric, key))} standard error, "
        cards.append(
            card(key, shown(values[key], run.unit(metric, key)), f"{spread}{count(run.best.get('records'))} records")
        )
    planned = history.planned_steps
    best = "nothing evaluated yet" if run.best_step is None else f"of {history.step:,}; its checkpoint is kept"
    done = f"{history.step:,}" + (f" of {planned:,} planned" if planned not in (None, history.step) else "")
    epochs = number(mapping(history.recipe.get("finetuning")).get("epochs"))
    passes = f"{epochs or 0:g} epoch{'s' * (epochs != 1)}"
    batch = count(mapping(history.recipe.get("training")).get("batch_size"))
    cards += [
        card("best step", "-" if run.best_step is None else f"{run.best_step:,}", best),
        card("training records", count(records.get("train")), f"{passes}, {batch} at a time"),
        card("steps", done, f"from {Path(str(start.get('model', '-'))).name} of {_short_path(start.get('model'))}"),
        card(
            "parameters",
            count(start.get("parameters")),
            f"{len(sequence(start.get('drawn')))} tensors newly initialised",
        ),
        time_card(history),
        machine_card(history),
    ]
    return "".join(cards)


def _short_path(value: Any) -> str:
    """The last folders of a model's path, without those of its checkpoints."""
    parts = [part for part in Path(str(value)).parts if part not in (CHECKPOINTS, BEST)]
    return "/".join(parts[-3:-1]) or "-"


def scores(run: TaskRun, errors: Mapping[str, Mapping[str, float]]) -> str:
    """Table of all values of all metrics at the best and the last step."""
    if not run.best:
        return '<p class="nothing">Nothing was evaluated: there is no development file, or no evaluation yet.</p>'
    last_step, last = next(reversed(run.history.evaluations.items()))
    rows = []
    for metric in run.metrics:
        values, at_last = run.values(metric), run.values(metric, last)
        without = run.values(metric, run.baseline) if run.baseline else {}
        for key, value in values.items():
            unit, error = run.unit(metric, key), errors.get(metric, {}).get(key)
            cells = [shown(value, unit), "-" if error is None else f"\u00b1 {shown(error, unit)}"]
            cells += [shown(each[key], unit) if key in each else "-" for each in (at_last, without)]
            is_first = metric == run.metrics[0] and key == headline_of(metric, values)
            rows.append(score_row([escape(metric), escape(key)], cells, bold=is_first))
    heads = [
        "metric",
        "value",
        f"best, step {run.best_step:,}",
        "standard error",
        f"last, step {last_step:,}",
        "without a model",
    ]
    table = score_table(heads, rows, names=2)
    notes = [str(mapping(mapping(run.best.get("results")).get(metric)).get("note") or "") for metric in run.metrics]
    said = "".join(f'<p class="note">{escape(note)}</p>' for note in notes if note)
    lead = "In percent unless a unit is given; the value in bold selected the best checkpoint"
    found = [number(event.get("headline")) for event in run.history.evaluations.values()]
    known = [value for value in found if value is not None]
    if known and number(run.best.get("headline")) != max(known):
        lead += ", the likeliest of those within a standard error of its highest"
    lead += "."
    if run.baseline:
        lead += f" Without a model: {run.baseline.get('name')}."
    if run.verdict:
        lead = f"Verdict: {run.verdict}. {lead}"
    return f'<p class="lead">{escape(lead)}</p><div class="panel scroll">{table}{said}</div>'


def _curves(run: TaskRun) -> str:
    history = run.history
    mark = None if run.best_step is None else (float(run.best_step), "best")
    several = STYLES if len(history.trained) > 1 else (None,)
    losses = [
        Line(name=target, style=style, points=history.curve("loss", target), smooth=True)
        for target, style in zip(history.trained, itertools.cycle(several), strict=False)
    ]
    size = chart_size(1 + len(run.metrics))
    large = [
        panel(
            "Training loss",
            line_chart(losses, title="training loss over steps", mark=mark, width=size[0], height=size[1]),
        )
    ]
    large += [panel(f"Development {metric}", metric_chart(run, metric, mark, size)) for metric in run.metrics]
    wide, high = SMALL
    small = []
    for key, title, smooth in (
        ("learning_rate", "Learning rate", False),
        ("gradient_norm", "Gradient norm", True),
        ("text_tokens_per_second", "Tokens per second", True),
    ):
        line = Line(name="", points=history.curve(key), smooth=smooth)
        small.append(panel(title, line_chart([line], title=title, width=wide, height=high)))
    return f'{chart_grid(large)}<div class="grid small">{"".join(small)}</div>'


def chart_size(charts: int) -> tuple[int, int]:
    """Size of a chart: small if the number of charts is a multiple of three, which fills rows of three."""
    return SMALL if charts % 3 == 0 else LARGE


def chart_grid(panels: Sequence[str]) -> str:
    """Panels with charts of `chart_size`, in rows of two or three."""
    return f'<div class="grid{" small" if chart_size(len(panels)) == SMALL else ""}">{"".join(panels)}</div>'


def metric_chart(run: TaskRun, metric: str, mark: tuple[float, str] | None, size: tuple[int, int]) -> str:
    """The values of a metric over the steps: the main one and at most three more."""
    keys = list(run.values(metric))
    first = headline_of(metric, dict.fromkeys(keys))
    lines = [
        Line(name=key, style=style, points=run.points(metric, key))
        for key, style in zip([first, *(key for key in keys if key != first)], STYLES[:4], strict=False)
    ]
    return line_chart(
        lines, title=f"{metric} on the development file over steps", mark=mark, width=size[0], height=size[1]
    )


def answers_chart(runs: Sequence[TaskRun]) -> str:
    """Predictions against references over all runs, in charts that fit what the first metric compares."""
    answers = [one for run in runs for one in run.answers]
    if not answers:
        return '<p class="nothing">No predictions are kept: there is no development file, or no evaluation yet.</p>'
    metric = METRICS.get(runs[0].metrics[0]) if runs[0].metrics else None
    task = mapping(runs[0].history.recipe.get("task"))
    compares = metric.compares if metric else "tags" if task.get("kind") == "tagging" else "texts"
    said, right = [one["prediction"] for one in answers], [one["reference"] for one in answers]
    several = f", over all {len(runs)} seeds" if len(runs) > 1 else ""
    if compares == "numbers":
        quantities = [_quantity(one) for one in said], [_quantity(one) for one in right]
        return _beside(
            (f"Predicted over gold quantities{several}", scatter(*quantities)), ("Deviations", deviations(*quantities))
        )
    if compares in ("labels", "tags"):
        labels = [str(label) for label in sequence(task.get("labels"))]
        if compares == "tags":
            said, right = ([tag for tags in side for tag in sequence(tags)] for side in (said, right))
        answers_as_text = [str(one) for one in said], [str(one) for one in right]
        return _beside(
            (f"Counts, shaded by the share of each row{several}", confusion(*answers_as_text, labels)),
            ("By class", by_class(*answers_as_text, labels)),
        )
    words = [len(_text(one).split()) for one in said], [len(_text(one).split()) for one in right]
    return panel(f"Lengths in words{several}", lengths(*words))


def _quantity(value: Any) -> float:
    """The value as a number; NaN if it is not one."""
    found = number(value)
    return math.nan if found is None else found


def _beside(wide: tuple[str, str], narrow: tuple[str, str]) -> str:
    """Two panels side by side, each given as title and HTML content."""
    return f'<div class="beside">{panel(*wide)}{panel(*narrow)}</div>'


def _text(value: Any) -> str:
    """The value as a text: the first of several, or empty."""
    several = mapping(value).get("answers", value)
    first = next(iter(several), "") if isinstance(several, list) else several
    return str(first)


def samples(run: TaskRun) -> str:
    """Predictions with their records, wrong ones first; ticks and crosses mark them besides colours."""
    if not run.samples:
        return '<p class="nothing">No samples are kept: there is no development file, or no evaluation yet.</p>'
    lead = "Predictions of the best checkpoint on the development file; wrong or least accurate ones come first."
    return f'<p class="lead">{lead}</p><div class="answers">{"".join(map(_sample, run.samples))}</div>'


def _sample(sample: Event) -> str:
    right = sample.get("right")
    style = {True: " right", False: " wrong"}.get(right, "") if isinstance(right, bool) else ""
    rows = [_row(str(role), value) for role, value in mapping(sample.get("fields")).items()]
    confidence = number(sample.get("confidence"))
    sure = "" if confidence is None else f" ({confidence:.0%})"
    verdict = {True: " \u2713", False: " \u2717"}.get(right, "") if isinstance(right, bool) else ""
    rows += ["<hr/>", _row("predicted", sample.get("prediction"), f"{sure}{verdict}", "said")]
    if right is not True:
        rows.append(_row("gold", sample.get("reference")))
    rows.append(_row("record", sample.get("id"), style="id"))
    return f'<div class="answer{style}"><dl>{"".join(rows)}</dl></div>'


def _row(name: str, value: Any, more: str = "", style: str = "") -> str:
    parts = value if isinstance(value, list) else [value]
    text = " | ".join(f"{part:.4g}" if isinstance(part, float) else str(part) for part in parts) or "(nothing)"
    return f'<dt>{escape(name)}</dt><dd class="{style}">{escape(text)}{escape(more)}</dd>'


def _commands(run: TaskRun) -> str:
    folder, kept = shlex.quote(str(run.history.run)), shlex.quote(str(run.history.run / DEV_PREDICTIONS))
    predicting = f"unicloze predict --model {folder} --file records.jsonl --out said.jsonl"
    lines = [("Predict your own records", predicting)]
    metric = METRICS.get(run.metrics[0]) if run.metrics else None
    if run.answers and metric is not None and metric.compares in ("labels", "numbers", "texts", "tags"):
        measuring = f"unicloze measure {run.metrics[0]} --predictions {kept} --references {kept}"
        lines.append(("Measure its predictions on the development file, with this or another metric", measuring))
    commands = "".join(f"<p>{title}</p><pre>{escape(command)}</pre>" for title, command in lines)
    return f'<div class="panel">{commands}</div>'


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
        ("Curves", _seed_curves(runs)),
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
        cards=_seed_cards(runs),
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


def _seed_cards(runs: Sequence[TaskRun]) -> str:
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


def _seed_curves(runs: Sequence[TaskRun]) -> str:
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

"""The static HTML page of a comparison: the table, bars of each score, and the curves of every run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from unicloze.comparison.runs import PROBES
from unicloze.comparison.table import (
    NOT_DEFINED,
    Column,
    Comparison,
    ContestantResult,
    ProbeColumn,
    caption,
    cells,
    columns,
)
from unicloze.report.charts import Line, line_chart
from unicloze.report.frame import frame
from unicloze.report.history import History, TaskRun

_COLOURS = 16
"""Number of colours in the style sheet: `c0` to `c15`."""
SIGNS = {"best": "\u2605 ", "near": "\u2248 "}
"""Signs for the best value of a column, and for values within its spread."""
MARKS = (
    "\u2605 best mean of the column; \u2248 within the spread: the difference is at most the sum of the two deviations."
)


def page(comparison: Comparison) -> str:
    """The whole page as HTML."""
    sections = [("Table", _table(comparison)), ("Scores", _bars(comparison)), ("Curves", _curves(comparison))]
    if comparison.probes:
        sections.append(("Probes", _probes(comparison)))
    return frame(
        name="Objectives compared",
        window_title="Objectives compared - unicloze",
        status=comparison.budget,
        subtitle=caption(comparison),
        sections=sections,
        styles=[("unicloze.comparison", "comparison.css")],
    )


def _table(comparison: Comparison) -> str:
    heading, *lines = cells(comparison)
    scores = columns(comparison)
    ranks = [ranked(comparison, column) for column in scores]
    marked = []
    for i, line in enumerate(lines):
        said = [_cell(text, rank.get(i, "")) for text, rank in zip(line[2 : 2 + len(scores)], ranks, strict=True)]
        marked.append([_dotted(i, line[0]), _cell(line[1]), *said, *map(_cell, line[2 + len(scores) :])])
    return f'{_panel(heading, marked)}<p class="note">{MARKS}</p>'


def ranked(comparison: Comparison, column: Column) -> dict[int, str]:
    """Rows with the best mean of a score, and rows that differ from it by at most the sum of both deviations."""
    known = {i: spread for i, row in enumerate(comparison.rows) if (spread := row.scores[column.key]) is not None}
    if len(known) < 2:
        return {}
    sign = 1 if column.higher_is_better else -1
    best = max(known.values(), key=lambda spread: sign * spread.mean)
    found = {}
    for i, spread in known.items():
        if spread.mean == best.mean:
            found[i] = "best"
        elif abs(spread.mean - best.mean) <= (spread.deviation or 0.0) + (best.deviation or 0.0):
            found[i] = "near"
    return found


def _panel(heading: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table with a heading of plain text and lines of HTML cells."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heading)
    body = "".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="panel scroll"><table class="comparison">{table}</table></div>'


def _dotted(number: int, name: str) -> str:
    """The heading cell of a contestant, with a dot in its colour."""
    return f'<th class="c{number % _COLOURS}"><span class="dot"></span>{escape(name)}</th>'


def _cell(text: str, rank: str = "") -> str:
    """A cell; `rank` marks the best value of a column and values within its spread."""
    kind = "none" if text == NOT_DEFINED else rank
    return f'<td class="{kind}">{SIGNS.get(rank, "")}{escape(text)}</td>'


def _bars(comparison: Comparison) -> str:
    """Bars of each score, best first; lower is better for perplexities, higher for accuracies."""
    panels = []
    for column in columns(comparison):
        known = [(i, row, spread) for i, row in enumerate(comparison.rows) if (spread := row.scores[column.key])]
        if not known:
            continue
        known.sort(key=lambda entry: entry[2].mean, reverse=column.higher_is_better)
        most = max(spread.mean for _, _, spread in known)
        ranks = ranked(comparison, column)
        bars = "".join(
            f'<div class="bar c{i % _COLOURS} {ranks.get(i, "")}"><span class="name">{escape(row.name)}</span>'
            f'<span class="track"><span class="length" style="width:{_share(spread.mean, most):.1f}%"></span></span>'
            f'<span class="value">{SIGNS.get(ranks.get(i, ""), "")}{escape(column.figure(spread))}</span></div>'
            for i, row, spread in known
        )
        better = "higher is better" if column.higher_is_better else "lower is better"
        panels.append(f'<figure class="panel"><h3>{escape(column.title)} <small>{better}</small></h3>{bars}</figure>')
    return f'<div class="grid">{"".join(panels)}</div>'


def _share(value: float, most: float) -> float:
    """A value in percent of the largest; 0 for negative values, such as correlations."""
    return 100 * max(0.0, value) / most if most > 0 else 0.0


def _curves(comparison: Comparison) -> str:
    """Held-out loss over FLOPs: a panel per target, a line per recipe or part of its mixture (first seed)."""
    panels: dict[str, list[Line]] = {}
    for i, row in enumerate(comparison.rows):
        history, each = History.read(comparison.out / row.name / "seed-0"), row.flops / max(1, row.steps)
        for name in history.evaluated:
            part, _, target = name.rpartition(".")
            line = Line(
                name=f"{row.name}, {part}" if part else row.name,
                style=f"c{i % _COLOURS}",
                labelled=False,
                points=[(step * each, loss) for step, loss in history.curve("loss", name, evaluated=True)],
            )
            panels.setdefault(target, []).append(line)
    lead = (
        "Each run's held-out loss on its own objective over the FLOPs spent, with its own windows and masks. Curves in a "
        "panel share the name of a target, but may measure different tasks: compare recipes by the table."
    )
    charts = "".join(_target_panel(target, lines) for target, lines in panels.items())
    return f'<p class="lead">{lead}</p><div class="grid">{charts}</div>'


def _target_panel(target: str, lines: Sequence[Line]) -> str:
    chart = line_chart(lines, title=f"held-out loss of {target} over FLOPs", width=560, height=320, over="FLOPs")
    heading = f"Held-out loss, {escape(target)}, nats per prediction"
    return f'<figure class="panel"><h3>{heading}</h3>{_legend(lines)}{chart}</figure>'


def _legend(lines: Sequence[Line]) -> str:
    """Names of curves in their colours, since they may be too long to label the curves."""
    names = "".join(f'<span class="{line.classes}">{escape(line.name)}</span>' for line in lines)
    return f'<p class="legend">{names}</p>'


def _probes(comparison: Comparison) -> str:
    """Settings, cost and score curves of each probe's fine-tuning."""
    lead = (
        "Every run is fine-tuned with its own seed, using the visibility and pooling of its recipe; files and settings are "
        "the same for all. Fine-tuning does not count against the budget. Curves show the first seed."
    )
    keys = dict.fromkeys(key for probe in comparison.probes for key in probe.settings)
    settings = [key.rpartition(".")[2].replace("_", " ") for key in keys]
    heading = ["probe", "scored by", "training records", "development records", *settings]
    lines = [
        [
            f"<th>{escape(probe.name)}</th>",
            *map(_cell, (_measure(probe), *(f"{count:,}" for count in probe.records))),
            *(_cell(f"{probe.settings[key]:g}") for key in keys),
        ]
        for probe in comparison.probes
    ]
    spent = [
        [_dotted(i, row.name), _cell(row.reads), *_spent(comparison, row)] for i, row in enumerate(comparison.rows)
    ]
    measures = [f"{probe.name}, {what}" for probe in comparison.probes for what in ("FLOPs", "seconds")]
    charts = "".join(_probe_chart(comparison, probe) for probe in comparison.probes)
    tables = _panel(heading, lines) + _panel(["recipe", "read, pooled", *measures], spent)
    return f'<p class="lead">{lead}</p>{tables}<div class="grid">{charts}</div>'


def _measure(probe: ProbeColumn) -> str:
    return probe.value if probe.value == probe.metric else f"{probe.metric}: {probe.value}"


def _spent(comparison: Comparison, row: ContestantResult) -> list[str]:
    """FLOPs and seconds of fine-tuning on each probe."""
    found = [row.probes.get(probe.name) for probe in comparison.probes]
    texts = [(f"{one.flops:.2e}", f"{one.seconds:,.0f}") if one else (NOT_DEFINED,) * 2 for one in found]
    return [_cell(text) for pair in texts for text in pair]


def _probe_chart(comparison: Comparison, probe: ProbeColumn) -> str:
    lines = []
    for i, row in enumerate(comparison.rows):
        if probe.name in row.probes:
            run = TaskRun.read(comparison.out / row.name / "seed-0" / PROBES / probe.name)
            points = run.points(probe.metric, probe.value)
            lines.append(Line(name=row.name, style=f"c{i % _COLOURS}", points=points, labelled=False))
    chart = line_chart(lines, title=probe.title, width=560, height=320)
    return (
        f'<figure class="panel"><h3>{escape(probe.title)} on the development file</h3>{_legend(lines)}{chart}</figure>'
    )

"""A finished comparison and its table, as terminal text, as Markdown, and as a static HTML page with charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from markupsafe import Markup

from unicloze.files import Plain
from unicloze.finetuning.seeds import OverSeeds
from unicloze.progress import counted
from unicloze.report.charts import Line, line_chart, short
from unicloze.report.frame import render
from unicloze.report.history import History
from unicloze.training.ledger import Figure
from unicloze.training.verdict import Counted, not_beaten


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Cost of fine-tuning on one probe, averaged over the seeds.

    Args:
        flops: Floating-point operations of the training steps.
        seconds: Wall-clock time including evaluations, summed over restarts.
    """

    flops: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ContestantResult:
    """One contestant's results.

    Args:
        name: Name of the recipe.
        objective: Description of the objective.
        network: The network's size and kind.
        parameters: Number of trained weights, counting tied ones once.
        steps: Optimizer steps, the mean over the seeds.
        text_tokens: Text tokens trained on.
        flops: Floating-point operations spent on slots and predictions.
        seconds: Wall-clock time of a run, summed over restarts.
        scores: Scores over the seeds, by measure; None if the objective does not define a measure.
        reads: Visibility and pooling used for probes, from the `use` section of its recipe.
        probes: Cost of fine-tuning by probe, not included in the fields above.
        figures: Held-out losses by measure, the mean over the seeds with the error of a single run.
        counts: The comparison's `counts` where they see the end of the window before too, as this model with a memory does;
            empty for other models.
    """

    name: str
    objective: str
    network: str
    parameters: int
    steps: int
    text_tokens: float
    flops: float
    seconds: float
    scores: Mapping[str, OverSeeds | None]
    reads: str = ""
    probes: Mapping[str, Spent] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    counts: Counted = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ProbeColumn:
    """The column of a probe's scores.

    Args:
        name: Name of the task recipe.
        metric: Metric that measures it.
        value: Value of the metric that is the score.
        unit: Unit of the score; empty for a plain number.
        higher_is_better: Whether a higher score is better.
        files: Training and development file, as given.
        records: Number of records in each file.
        settings: Main fine-tuning settings, by dotted name.
        not_defined: Why a recipe has no score, by the name of the recipe.
    """

    name: str
    metric: str
    value: str
    unit: str
    higher_is_better: bool
    files: tuple[str, str]
    records: tuple[int, int]
    settings: Mapping[str, Any]
    not_defined: Mapping[str, str]

    @property
    def column(self) -> Column:
        """The column of its scores in the table."""
        title, decimals = f"{self.name}, {self.value} {self.unit}".rstrip(), 1 if self.unit == "%" else 3
        return Column(probe_key(self.name), title, decimals=decimals, higher_is_better=self.higher_is_better)


def probe_key(name: str) -> str:
    """Key of a probe's score among those of a run."""
    return f"probe.{name}"


def words_key(side: str) -> str:
    """Key of the share of content words guessed from `both` sides or from the `left`."""
    return f"words_{side}"


NOT_DEFINED = "-"
PROBES = "probes"
"""Folder of a run's fine-tunings, and the key of their settings and scores in files."""


@dataclass(frozen=True)
class Column:
    """A score column of the table.

    Args:
        key: Key of the score in a row.
        title: Title of the column.
        decimals: Number of decimals shown.
        higher_is_better: Whether a higher score is better.
    """

    key: str
    title: str
    decimals: int = 1
    higher_is_better: bool = False

    def figure(self, spread: OverSeeds | None) -> str:
        """A score with its standard deviation over the seeds."""
        if spread is None:
            return NOT_DEFINED
        said = f"{spread.mean:,.{self.decimals}f}"
        return said if spread.deviation is None else f"{said} ± {spread.deviation:,.{self.decimals}f}"


MEASURES = (
    Column("ae", "AE perplexity"),
    Column("par", "PAR perplexity"),
    Column("causal", "causal perplexity"),
    Column("bits_per_byte", "causal bits/byte", decimals=3),
    Column("words_both", "content words in the top 5, %", higher_is_better=True),
    Column("words_left", "content words in the top 5 from the left, %", higher_is_better=True),
    Column("blimp_pseudo", "BLiMP, pseudo-log-likelihood %", higher_is_better=True),
    Column("blimp_chain", "BLiMP, chain rule %", higher_is_better=True),
)
"""Columns of the scores that are not of probes; others have their key as a title."""
TITLES = {column.key: column.title for column in MEASURES}


@dataclass(frozen=True, kw_only=True)
class Comparison(Plain):
    """A finished comparison.

    Args:
        out: Folder of the comparison.
        budget: Budget of each run.
        seeds: Number of seeds.
        windows: Number of held-out windows used for measuring.
        window: Length of a window in tokens.
        rows: One row per contestant, in the given order.
        counts: Perplexities of counts of the training text on the same predictions, by the key of the models' perplexity and
            by kind of count: `unigram`, and `trigram`, Kneser-Ney's.
        counted_words: Scores of that trigram on content words, by the key of the models' score.
        probes: Tasks that every model was fine-tuned on.
    """

    out: Path
    budget: str
    seeds: int
    windows: int
    window: int
    rows: tuple[ContestantResult, ...]
    counts: Counted = field(default_factory=dict)
    counted_words: Mapping[str, float] = field(default_factory=dict)
    probes: tuple[ProbeColumn, ...] = ()

    def __str__(self) -> str:
        return as_text(self)


def columns(comparison: Comparison) -> list[Column]:
    """The score columns, in order, of the measures that some recipe defines."""
    known = {column.key: column for column in (*MEASURES, *(probe.column for probe in comparison.probes))}
    every = comparison.rows[0].scores if comparison.rows else ()
    measured = [key for key in every if any(row.scores[key] is not None for row in comparison.rows)]
    return [known.get(key, Column(key, key)) for key in measured]


def cells(comparison: Comparison) -> list[list[str]]:
    """The cells of the table, including the heading."""
    scores = columns(comparison)
    heading = ["recipe", "objective", "network", *(column.title for column in scores)]
    heading += ["parameters", "steps", "text tokens", "FLOPs", "seconds"]
    heading += ["probes: read, pooled", "probes: FLOPs", "probes: seconds"] * bool(comparison.probes)
    table = [heading]
    for row in comparison.rows:
        line = [row.name, row.objective, row.network, *(column.figure(row.scores[column.key]) for column in scores)]
        line += [short(row.parameters), f"{row.steps:,}", short(row.text_tokens), *_cost([row])]
        line += [row.reads, *_cost(list(row.probes.values()))] if comparison.probes else []
        table.append(line)
    return table


def _cost(spent: Sequence[Spent | ContestantResult]) -> tuple[str, str]:
    """FLOPs and seconds in all."""
    if not spent:
        return NOT_DEFINED, NOT_DEFINED
    return f"{sum(one.flops for one in spent):.2e}", f"{sum(one.seconds for one in spent):,.0f}"


def caption(comparison: Comparison) -> str:
    """Explanation of the figures."""
    spread = "mean ± standard deviation over" if comparison.seeds > 1 else "of"
    return " ".join([
        f"Budget {comparison.budget} for each run, {spread} {counted(comparison.seeds, 'seed')}. "
        f"Measured on the same {comparison.windows:,} held-out windows of {comparison.window} tokens, with the same masks; "
        f"{NOT_DEFINED}: the objective does not define it, or it was not measured. FLOPs count slots and predictions; "
        "seconds cover the whole run with its evaluations.",
        *_of_counts(comparison),
        *_of_probes(comparison),
    ])  # fmt: skip


def _of_counts(comparison: Comparison) -> list[str]:
    """What a Kneser-Ney trigram of the training text reaches, and who does not beat it."""
    counts = comparison.counts
    if not counts:
        return []
    said_of = comparison.counted_words.items()
    words = [f"{value:.1f} % of the {TITLES[key].removesuffix(', %')}" for key, value in said_of]
    said = [f"A Kneser-Ney trigram of the training text, on the same predictions: {_list(_reached(counts) + words)}."]
    if with_memory := [row for row in comparison.rows if row.counts]:
        names, reached = _list([row.name for row in with_memory]), _list(_reached(with_memory[0].counts))
        sees = "sees" if len(with_memory) == 1 else "see"
        said.append(f"With the end of the window before, which {names} {sees} too: {reached}.")
    beaten: dict[str, list[str]] = {}
    for row in comparison.rows:
        if what := not_beaten(row.figures, row.counts or counts):
            beaten.setdefault(what, []).append(row.name)
    return said + [f"No better than {what}: {_list(names)}." for what, names in beaten.items()]


def _reached(counts: Counted) -> list[str]:
    return [f"{TITLES[key]} {kinds['trigram']:,.1f}" for key, kinds in counts.items()]


def _of_probes(comparison: Comparison) -> list[str]:
    """Explanation of the probes, in a few sentences."""
    if not comparison.probes:
        return []
    said = [
        f"Then every run was fine-tuned with its seed on {_list([probe.name for probe in comparison.probes])}, with the "
        "visibility and pooling of its recipe; the score is that of the best evaluation on the development file. FLOPs and "
        "seconds of the probes are totals over all probes and do not count against the budget."
    ]
    for probe in comparison.probes:
        why = [f"{name} ({reason.rstrip('.')})" for name, reason in probe.not_defined.items()]
        said += [f"{probe.name} is not defined for {_list(why)}."] if why else []
    return said


def _list(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def as_text(comparison: Comparison) -> str:
    """The table for a terminal: one recipe per line, without its objective."""
    table = [[line[0], *line[2:]] for line in cells(comparison)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(f"{cell:{'<' if i < 2 else '>'}{widths[i]}}" for i, cell in enumerate(line)).rstrip()
        for line in table
    ]
    return "\n".join([*lines, "", caption(comparison), f"Page: {comparison.out / 'index.html'}"])


def as_markdown(comparison: Comparison) -> str:
    """The table as Markdown."""
    heading, *rest = cells(comparison)
    rule = ["---", "---", "---", *("---:" for _ in heading[3:])]
    lines = ["| " + " | ".join(line) + " |" for line in (heading, rule, *rest)]
    return "\n".join([*lines, "", caption(comparison), ""])


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
        lines, title = [], probe.column.title
        for i, row in enumerate(comparison.rows):
            if probe.name in row.probes:
                run = History.read(comparison.out / row.name / "seed-0" / PROBES / probe.name)
                lines.append(_line(i, row.name, run.points(probe.metric, probe.value)))
        curves.append(_panel(f"{title} on the development file", title, lines, "step"))
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

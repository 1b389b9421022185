"""The page about a fine-tuning run, or several seeds of one: scores, curves, predictions and errors."""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from unicloze.evaluation.metrics.registry import METRICS
from unicloze.files import BEST, CHECKPOINTS, DEV_PREDICTIONS, LEDGER
from unicloze.finetuning.seeds import OverSeeds
from unicloze.progress import counted
from unicloze.report.charts import Line, by_class, confusion, deviations, lengths, line_chart, scatter
from unicloze.report.frame import Card, cards_of_the_process, count, head_of, heading_of, render
from unicloze.report.history import Event, History, headline_of, number, sequence
from unicloze.training.ledger import mapping

STYLES = "s-plain", "s-par", "s-ae", "s-lm", "s-pair", "s-rtd"
"""Style classes of the curves in one chart; of more seeds, the first are drawn."""
SMALL, LARGE = (380.0, 220.0), (560.0, 300.0)
"""Size of a chart that takes a third or half of the page."""
Panel = tuple[str, Markup]
"""Title and content of a part of a page."""


def task_page(run: History, refresh: int | None = None) -> str:
    """The page of one run as HTML."""
    measures = ("learning_rate", "Learning rate", False), ("gradient_norm", "Gradient norm", True)
    return render(
        "report/templates/task.html",
        cards=_cards(run),
        refresh=refresh,
        scores=_scores(run),
        large=_curves(run),
        small=small_charts(run, (*measures, ("text_tokens_per_second", "Tokens per second", True))),
        answers=answer_panels([run]),
        samples=[_sample(sample) for sample in run.answered_records],
        lines=_commands(run),
        **head_of(run),
    )


def _cards(run: History) -> list[Card]:
    start, planned = run.start, run.planned_steps
    cards: list[Card] = []
    for metric in run.metrics[:3]:
        values, errors = run.values(metric), run.errors(metric)
        if not (key := headline_of(metric, values)):
            cards.append((metric, "-", "not evaluated yet"))
            continue
        error = f"\u00b1 {run.shown(metric, key, errors[key])} standard error, " if key in errors else ""
        cards.append((key, run.shown(metric, key, values[key]), f"{error}{count(run.best.get('records'))} records"))
    best = "nothing evaluated yet" if run.best_step is None else f"of {run.step:,}; its checkpoint is kept"
    done = f"{run.step:,}" + (f" of {planned:,} planned" if planned not in (None, run.step) else "")
    epochs = number(mapping(run.recipe.get("finetuning")).get("epochs"))
    passes = f"{epochs or 0:g} epoch{'s' * (epochs != 1)}"
    batch = count(mapping(run.recipe.get("training")).get("batch_size"))
    model = Path(str(start.get("model", "-")))
    folders = [part for part in model.parts if part not in (CHECKPOINTS, BEST)]
    drawn = f"{len(sequence(start.get('drawn')))} tensors newly initialised"
    return [
        *cards,
        ("best step", "-" if run.best_step is None else f"{run.best_step:,}", best),
        ("training records", count(mapping(start.get("records")).get("train")), f"{passes}, {batch} at a time"),
        ("steps", done, f"from {model.name} of {'/'.join(folders[-3:-1]) or '-'}"),
        ("parameters", count(start.get("parameters")), drawn),
        *cards_of_the_process(run),
    ]


def _scores(run: History) -> str | dict[str, Any]:
    """Table of all values of all metrics at the best and the last step; or why there are none."""
    if not run.best:
        return "Nothing was evaluated: there is no development file, or no evaluation yet."
    last_step, last = next(reversed(run.evaluations.items()))
    rows: list[Sequence[str]] = []
    best, notes = None, []
    for metric in run.measured:
        values, errors = run.values(metric), run.errors(metric)
        others = [run.values(metric, event) for event in (last, *run.rivals)]
        for key, value in values.items():
            if metric == run.metrics[0] and key == headline_of(metric, values):
                best = len(rows)
            error = f"\u00b1 {run.shown(metric, key, errors[key])}" if key in errors else "-"
            more = [run.shown(metric, key, each[key]) if key in each else "-" for each in others]
            rows.append([metric, key, run.shown(metric, key, value), error, *more])
        notes.append(mapping(mapping(run.best.get("results")).get(metric)).get("note"))
    lead = "In percent unless a unit is given; the value in bold selected the best checkpoint"
    headlines = [number(event.get("headline")) for event in run.evaluations.values()]
    if number(run.best.get("headline")) != max((value for value in headlines if value is not None), default=None):
        lead += ", by likelihood within two standard errors of its highest"
    lead += "."
    steps = f"best, step {run.best_step:,}", "standard error", f"last, step {last_step:,}"
    heads = ["metric", "value", *steps, *(str(event.get("name")) for event in run.rivals)]
    return {"lead": lead, "heads": heads, "rows": rows, "names": 2, "best": best, "notes": filter(None, notes)}


def _curves(run: History) -> list[Panel]:
    mark = None if run.best_step is None else (float(run.best_step), "best")
    several = STYLES if len(run.trained) > 1 else (None,)
    size = chart_size(1 + len(run.metrics))
    styled = zip(run.trained, itertools.cycle(several), strict=False)
    losses = [Line(name=name, style=style, points=run.curve("loss", name), smooth=True) for name, style in styled]
    panels = [("Training loss", line_chart(losses, title="training loss over steps", mark=mark, size=size))]
    for metric in run.metrics:  # the main value and at most three more
        values = run.values(metric)
        keys = zip(dict.fromkeys([headline_of(metric, values), *values]), STYLES[:4], strict=False)
        lines = [Line(name=key, style=style, points=run.points(metric, key)) for key, style in keys]
        title = f"{metric} on the development file over steps"
        panels.append((f"Development {metric}", line_chart(lines, title=title, mark=mark, size=size)))
    return panels


def small_charts(run: History, measures: Iterable[tuple[str, str, bool]]) -> list[Panel]:
    """A small chart of each measure over the steps, given by its key, its title and whether to smooth it."""
    lines = [(title, Line(name="", points=run.curve(key), smooth=smooth)) for key, title, smooth in measures]
    return [(title, line_chart([line], title=title, size=SMALL)) for title, line in lines]


def chart_size(charts: int) -> tuple[float, float]:
    """Size of a chart: small if the number of charts is a multiple of three, which fills rows of three."""
    return SMALL if charts % 3 == 0 else LARGE


def answer_panels(runs: Sequence[History]) -> list[Panel]:
    """Predictions against references over all runs, in charts that fit what the first metric compares."""
    answers = [one for run in runs for one in run.answers]
    if not answers:
        return []
    task, several = runs[0].task, f", over {len(runs)} seeds" if len(runs) > 1 else ""
    metric = METRICS.get(runs[0].metrics[0]) if runs[0].metrics else None
    compares = metric.compares if metric else "tags" if task.get("kind") == "tagging" else "texts"
    sides = [[one[side] for one in answers] for side in ("prediction", "reference")]
    if compares == "numbers":
        said, gold = ([math.nan if (read := number(one)) is None else read for one in side] for side in sides)
        title = f"Predicted over gold quantities{several}"
        return [(title, scatter(said, gold)), ("Deviations", deviations(said, gold))]
    if compares in ("labels", "tags"):
        if compares == "tags":
            sides = [[tag for tags in side for tag in sequence(tags)] for side in sides]
        labels = [str(label) for label in sequence(task.get("labels"))]
        predicted, references = ([str(one) for one in side] for side in sides)
        counts, classes = (chart(predicted, references, labels) for chart in (confusion, by_class))
        return [(f"Gold and predicted{several}", counts), ("By class", classes)]
    said_words, gold_words = ([len(_text(one).split()) for one in side] for side in sides)
    return [(f"Lengths in words{several}", lengths(said_words, gold_words))]


def _text(value: Any) -> str:
    """The value as a text: the first of several, or empty."""
    several = mapping(value).get("answers", value)
    return str(next(iter(several), "") if isinstance(several, list) else several)


def _sample(sample: Event) -> tuple[str, list[tuple[str, str, str]]]:
    """A prediction with its record; ticks and crosses mark it besides colours."""
    right = sample.get("right") if isinstance(sample.get("right"), bool) else None
    style, sign = {True: ("right", " \u2713"), False: ("wrong", " \u2717"), None: ("", "")}[right]
    confidence = number(sample.get("confidence"))
    sure = "" if confidence is None else f" ({confidence:.0%})"
    rows = [(str(role), _spelled(value), "") for role, value in mapping(sample.get("fields")).items()]
    rows.append(("predicted", f"{_spelled(sample.get('prediction'))}{sure}{sign}", "said"))
    if right is not True:
        rows.append(("gold", _spelled(sample.get("reference")), ""))
    return style, [*rows, ("record", _spelled(sample.get("id")), "id")]


def _spelled(value: Any) -> str:
    parts = value if isinstance(value, list) else [value]
    return " | ".join(f"{part:.4g}" if isinstance(part, float) else str(part) for part in parts) or "(nothing)"


def _commands(run: History) -> list[tuple[str, str]]:
    folder, kept = shlex.quote(str(run.run)), shlex.quote(str(run.run / DEV_PREDICTIONS))
    predicting = f"unicloze predict --model {folder} --file records.jsonl --out said.jsonl"
    lines = [("Predict your own records", predicting)]
    metric = METRICS.get(run.metrics[0]) if run.metrics else None
    if run.answers and metric is not None and metric.compares in ("labels", "numbers", "texts", "tags"):
        measuring = f"unicloze measure {run.metrics[0]} --predictions {kept} --references {kept}"
        lines.append(("Measure its predictions on the development file, with this or another metric", measuring))
    return lines


def seed_folders(folder: Path) -> list[Path]:
    """The run directories in a folder of seeds, ordered by seed; may be empty."""
    ledgers = [path / LEDGER for path in folder.glob("seed-*")]
    started = [ledger.parent for ledger in ledgers if ledger.is_file() and ledger.stat().st_size]
    return sorted(started, key=lambda path: (len(path.name), path.name))


def seeds_page(folder: Path, runs: Sequence[History], links: Sequence[str], refresh: int | None = None) -> str:
    """The page of all seeds as HTML, with links to the pages of the seeds."""
    first, ended = runs[0], sum(bool(run.end) for run in runs)
    status = counted(len(runs), "seed")
    return render(
        "report/templates/task.html",
        cards=_seed_cards(runs),
        first_seed=first.run.name,
        refresh=refresh,
        scores=_seed_scores(runs, links),
        large=_seed_curves(runs),
        more_seeds=len(STYLES) if len(runs) > len(STYLES) else 0,
        answers=answer_panels(_ended(runs)),
        samples=[_sample(sample) for sample in first.answered_records],
        **{
            **head_of(first),
            "name": heading_of(folder),
            "status": status if ended == len(runs) else f"{status}, {ended:,} of them ended",
            "verdict": "",
        },
    )


def _ended(runs: Sequence[History]) -> Sequence[History]:
    """The seeds that count in means: those that ended; all if none has."""
    return [run for run in runs if run.end] or runs


def _over_seeds(runs: Sequence[History], metric: str, key: str) -> tuple[list[float], float | None, str]:
    """One value at the best checkpoint of every seed that has it, its deviation, and its mean and deviation in words."""
    values = [values[key] for run in _ended(runs) if key in (values := run.values(metric))]
    if not values:
        return values, None, "-"
    spread = OverSeeds.of(values)
    return values, spread.deviation, runs[0].shown(metric, key, spread.mean, spread.deviation)


def _seed_cards(runs: Sequence[History]) -> list[Card]:
    first = runs[0]
    cards: list[Card] = []
    for metric in first.metrics[:3]:
        key = headline_of(metric, first.values(metric))
        values, deviation, mean = _over_seeds(runs, metric, key)
        if not values:
            cards.append((metric, "-", "not evaluated yet"))
            continue
        ends = " to ".join(first.shown(metric, key, value) for value in (min(values), max(values)))
        error = ""
        if deviation is not None:
            error = f", standard error of the mean {first.shown(metric, key, deviation / math.sqrt(len(values)))}"
        known = counted(len(runs), "seed") if len(values) == len(runs) else f"{len(values)} of {len(runs)} seeds"
        cards.append((f"{key}, mean and deviation", mean, f"{known}, {ends}{error}"))
    records, parameters = mapping(first.start.get("records")), first.start.get("parameters")
    more = f"{count(records.get('dev'))} to evaluate on; {count(parameters)} parameters"
    return [*cards, ("training records", count(records.get("train")), more), cards_of_the_process(first)[1]]


def _seed_scores(runs: Sequence[History], links: Sequence[str]) -> str | dict[str, Any]:
    first = runs[0]
    columns = list(
        dict.fromkeys((metric, key) for run in runs for metric in run.measured for key in run.values(metric))
    )
    if not columns:
        return "Nothing was evaluated yet."

    def cells(event: Event | None, run: History = first) -> list[str]:
        known = [run.values(metric, event).get(key) for metric, key in columns]
        return ["-" if value is None else run.shown(*at, value) for at, value in zip(columns, known, strict=True)]

    rows: list[Sequence[str]] = []
    for run, link in zip(runs, links, strict=True):
        name = Markup('<a href="{}">{}</a>').format(link, run.run.name)
        rows.append([name, "-" if run.best_step is None else f"{run.best_step:,}", *cells(None, run)])
    rows.append(["mean and deviation", "", *(_over_seeds(runs, *column)[2] for column in columns)])
    rows += [[str(rival.get("name")), "", *cells(rival)] for rival in first.rivals]
    keys = [key if len({metric for metric, _ in columns}) == 1 else f"{metric}: {key}" for metric, key in columns]
    lead = "Each seed at its own best step; in percent unless a unit is given; sample standard deviation."
    heads = ["seed", "best step", *keys]
    return {"lead": lead, "heads": heads, "rows": rows, "names": 1, "best": len(runs), "notes": []}


def _seed_curves(runs: Sequence[History]) -> list[Panel]:
    """Charts with one line per seed, for the first few seeds."""
    first, drawn = runs[0], list(zip(runs, STYLES, strict=False))
    size = chart_size(len(first.metrics) + len(first.trained))
    panels = []
    for metric in first.metrics:
        key = headline_of(metric, first.values(metric))
        lines = [Line(name=run.run.name, style=style, points=run.points(metric, key)) for run, style in drawn]
        panels.append((f"Development {key or metric}", line_chart(lines, title=f"{key} over steps by seed", size=size)))
    for target in first.trained:
        lines = [
            Line(name=run.run.name, style=style, points=run.curve("loss", target), smooth=True) for run, style in drawn
        ]
        title = f"loss of {target} over steps by seed"
        panels.append((f"Training loss, {target}", line_chart(lines, title=title, size=size)))
    return panels

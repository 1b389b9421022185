"""Writes a self-contained static HTML page about a run, without network access or scripts."""

from __future__ import annotations

import os
import shlex
import statistics
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import get_args

from unicloze.decoding.abilities import objective_of, part_with
from unicloze.errors import UniclozeError
from unicloze.example import predicts_tokens
from unicloze.files import LEDGER, RECIPE, write_file
from unicloze.objectives import Ability
from unicloze.recipes import load_recipe
from unicloze.report.components import (
    REPORT,
    card,
    colophon,
    heading_of,
    machine_card,
    origin_of,
    panel,
    recipe_section,
    status_of,
    time_card,
)
from unicloze.report.curves import Line, line_chart, short
from unicloze.report.fed import Fed
from unicloze.report.filled import filled_samples
from unicloze.report.frame import check_page, frame, reloading
from unicloze.report.history import History, mapping, number
from unicloze.report.lineage_table import count, lineage_table
from unicloze.report.seeds_page import seed_folders, seeds_page
from unicloze.report.sentences import example_texts
from unicloze.report.task_history import TaskRun
from unicloze.report.task_page import task_page

ENDINGS = {"end", "stop", "failed"}
"""Events that a process of a run ends with, unless it is killed."""
LINKED = RECIPE, LEDGER
"""Files of a run that its page links to."""


def watch_report(run: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, *, every: int) -> Path:
    """Rewrite the page about a run until the run ends; meanwhile the browser reloads it."""
    while not has_ended(Path(run)):
        build_report(run, out, refresh=every)
        time.sleep(every)
    return build_report(run, out)


def has_ended(run: Path) -> bool:
    """Whether the last process of a run, or of each of its seeds, has recorded its end."""
    folders = [run] if (run / LEDGER).is_file() else seed_folders(run) or [run]
    return all(History.read(folder).last.get("event") in ENDINGS for folder in folders)


def build_report(
    run: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, *, refresh: int | None = None
) -> Path:
    """Write the page about a run, finished or not.

    For a folder of fine-tuning runs with several seeds, write one page per run and one about all.
    """
    folder = Path(run)
    page = Path(out) if out is not None else folder / REPORT
    check_page(page)
    seeds = [] if (folder / LEDGER).is_file() else seed_folders(folder)
    if seeds:
        runs = [TaskRun.read(seed) for seed in seeds]
        for one in runs:
            check_page(one.history.run / REPORT)
        for one in runs:
            _write(one.history.run / REPORT, task_page(one), refresh)
        _write(page, seeds_page(folder, runs, page.parent), refresh)
        return page
    history = History.read(folder)
    is_task = bool(mapping(history.recipe.get("task")).get("kind"))
    beside = page.parent.resolve() == folder.resolve()
    links = [name for name in LINKED if beside and (folder / name).is_file()]
    _write(page, task_page(TaskRun.of(history)) if is_task else _page(history, links), refresh)
    return page


def _write(page: Path, content: str, refresh: int | None) -> None:
    content = content if refresh is None else reloading(content, refresh)
    write_file(page, content, "the report", "give another file with --out")


def _page(history: History, links: Sequence[str]) -> str:
    name = heading_of(history.run)
    try:
        fed = Fed.of(history)
    except UniclozeError as error:
        noisy, picture = False, f'<p class="nothing">No picture can be drawn: {escape(str(error))}</p>'
    else:
        noisy, picture = fed.noisy, fed.to_html()
    sections = [
        ("Curves", _curves(history, noisy=noisy)),
        ("What the model sees", picture),
        ("Filled samples", filled_samples(history)),
        ("Use or continue the run", _commands(history)),
        ("Data", lineage_table(mapping(history.start.get("lineage")))),
        ("Recipe", recipe_section(history)),
    ]
    return frame(
        name=name,
        window_title=f"{name} - unicloze report",
        status=status_of(history),
        subtitle=origin_of(history),
        verdict=history.verdict,
        cards=_cards(history),
        sections=sections,
        footer=colophon(history),
        links=links,
    )


def _cards(history: History) -> str:
    start, planned = history.start, history.planned_steps
    speeds = [speed for _, speed in history.curve("text_tokens_per_second")]
    tokens = [value for _, value in history.curve("text_tokens")]
    done = "" if planned is None else f"of {planned:,} planned"
    model = mapping(history.recipe.get("model"))
    size = f"{model.get('num_layers')} layers, hidden size {model.get('hidden_size')}" if model else ""
    cards = [_target_card(history, target) for target in history.evaluated or history.trained]
    cards += _words_card(history)
    cards += [
        card("parameters", count(start.get("parameters")), size),
        card("steps", f"{history.step:,}", done),
        card("text tokens", short(tokens[-1]) if tokens else "-", "seen in training"),
        card("speed", f"{statistics.median(speeds):,.0f}" if speeds else "-", "text tokens per second, median"),
        time_card(history),
        machine_card(history),
    ]
    return "".join(cards)


def _target_card(history: History, target: str) -> str:
    """Card with perplexity and bits per byte of a target that predicts tokens, or the mean loss of another target."""
    tokens = predicts_tokens(target)
    measure = "perplexity" if tokens else "loss"
    value = history.latest(measure, target)
    nothing = history.latest("predictions", target) == 0
    if value is None or nothing:
        why = "nothing to measure" if nothing else "not evaluated yet"
        return card(f"held-out {measure}, {target}", "-", why, target)
    step, event = next(reversed(history.evaluations.items()))
    name = f"{event.get('part', 'held-out')} {measure}, {target}"
    bits = history.latest("bits_per_byte", target)
    more = _counts(history, target) if tokens and event.get("part") == "held-out" else []
    more += [f"{short(bits)} bits per byte"] if tokens and bits is not None else []
    more += [] if tokens else ["nats per prediction"]
    predictions = number(mapping(event.get("predictions")).get(target))
    window = f"in {count(event.get('windows'))} windows of {count(event.get('window'))} tokens"
    more += [f"{count(predictions)} predictions {window}, after step {step:,}"]
    return card(name, _perplexity(value) if tokens else f"{value:.3f}", "; ".join(more), target)


def _counts(history: History, target: str) -> list[str]:
    """Perplexities of counts on the same predictions; empty for a run without them."""
    baselines = mapping(history.start.get("baselines"))
    names = {"trigram": "a Kneser-Ney trigram", "unigram": "counted words"}
    found = history.counts.get(target, {})
    said = ", ".join(f"{name} {_perplexity(found[kind])}" for kind, name in names.items() if kind in found)
    counted, tokens = number(baselines.get("counted")), number(baselines.get("tokens"))
    part = counted is not None and tokens is not None and counted < 0.99 * tokens
    return [f"{said} (in {short(counted or 0)} of {short(tokens or 0)} tokens)" if part else said] if said else []


def _words_card(history: History) -> list[str]:
    """Card with the share of content words guessed at the end, against counts; none for a run that did not measure it."""
    score, step = history.content_words, history.end.get("step")
    shares = [number(score.get(name)) for name in ("top_5", "top_1", "counts_top_5", "counts_top_1")]
    words = number(score.get("words"))
    if words is None or not isinstance(step, int) or None in shares:
        return []
    top_5, top_1, counts_5, counts_1 = (f"{100 * (share or 0.0):.1f} %" for share in shares)
    given = "the words left of it" if score.get("sees") == "left" else "the words around it"
    more = (
        f"Kneser-Ney trigram {counts_5}; the first guess is right for {top_1}, of the trigram {counts_1}; {words:,.0f} "
        f"held-out words, each from {given}, after step {step:,}"
    )
    return [card("content words in the top 5", top_5, more)]


def _perplexity(value: float) -> str:
    return short(value) if value >= 1e4 else f"{value:,.1f}"


def _curves(history: History, *, noisy: bool) -> str:
    """Training curves by target, held-out curves by target and part; targets without perplexity have their own chart."""
    losses = [Line(name=target, points=history.curve("loss", target), smooth=True) for target in history.trained]
    tokens = [target for target in history.evaluated if predicts_tokens(target)]
    others = [target for target in history.evaluated if not predicts_tokens(target)]
    perplexities = [Line(name=name, points=history.curve("perplexity", name, evaluated=True)) for name in tokens]
    heldout = [Line(name=name, points=history.curve("loss", name, evaluated=True)) for name in others]
    large = [
        panel("Training loss, nats per prediction", line_chart(losses, title="training loss over steps")),
        panel(
            "Held-out perplexity", line_chart(perplexities, title="held-out perplexity over steps", logarithmic=True)
        ),
    ]
    if heldout:
        large.append(panel("Held-out loss, nats per prediction", line_chart(heldout, title="held-out loss over steps")))
    measures = (
        ("text_tokens_per_second", "Text tokens per second", True),
        ("learning_rate", "Learning rate", False),
        ("gradient_norm", "Gradient norm", True),
    )
    small = [
        panel(
            title,
            line_chart([Line(name="", points=history.curve(key), smooth=smooth)], title=title, width=380, height=220),
        )
        for key, title, smooth in measures
    ]
    lead = "Held-out documents are set aside after deduplication; every evaluation uses the same windows of them."
    if noisy:
        lead += (
            " In evaluations every masked position shows a mask; in training some show a random token or the original "
            "token."
        )
    grids = f'<div class="grid">{"".join(large)}</div><div class="grid small">{"".join(small)}</div>'
    return f'<p class="lead">{lead}</p>{grids}'


def _commands(history: History) -> str:
    run = shlex.quote(str(history.run))
    able = _abilities(history)
    lines = []
    masked, whole = example_texts(history.run)
    if able & {"cloze", "stepwise"}:
        lines.append(("Fill the masks of a text", f"unicloze fill --model {run} --text {shlex.quote(masked)}"))
    if able & {"cloze", "causal"}:
        lines.append(("Score a text", f"unicloze score --model {run} --text {shlex.quote(whole)}"))
    planned = history.planned_steps
    if planned is not None and history.step < planned:
        lines.insert(0, ("Continue this run", f"unicloze pretrain --out {run}"))
    else:
        lines.append(("Train on", f"unicloze pretrain --out {run} --training.steps {2 * (planned or history.step)}"))
    checkpoint = history.checkpoint
    where = (
        f"Newest checkpoint: {history.run / 'checkpoints' / checkpoint}"
        if checkpoint
        else "No checkpoint is saved yet."
    )
    commands = "".join(f"<p>{title}</p><pre>{escape(command)}</pre>" for title, command in lines)
    return f'<div class="panel">{commands}<p class="note">{escape(where)}</p></div>'


def _abilities(history: History) -> set[str]:
    """Abilities that the run's objective defines; empty if its recipe cannot be read."""
    try:
        objective = objective_of(load_recipe(history.run / RECIPE))
    except UniclozeError:
        return set()
    return {name for name in get_args(Ability) if part_with(objective, name) is not None}

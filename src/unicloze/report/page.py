"""Writes a self-contained static HTML page about a run, without network access or scripts."""

from __future__ import annotations

import json
import os
import re
import shlex
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

from unicloze.decoding.inputs import objective_of, part_with
from unicloze.errors import UniclozeError
from unicloze.example import predicts_tokens
from unicloze.files import BASELINES, LEDGER, RECIPE, RESULTS, write_file
from unicloze.objectives import Ability
from unicloze.recipes import load_recipe
from unicloze.report.charts import Line, line_chart, series_class, short
from unicloze.report.frame import Card, cards_of_the_process, check_page, count, head_of, render
from unicloze.report.history import Event, History, number, sequence
from unicloze.report.picture import example_of_run
from unicloze.report.task_page import Panel, seed_folders, seeds_page, small_charts, task_page
from unicloze.text.tokenizers import Tokenizer
from unicloze.training.ledger import HELD_OUT, mapping

REPORT = "report.html"
"""File name of the page in a run directory."""
ENDINGS = {"end", "stop", "failed"}
"""Events that a process of a run ends with, unless it is killed."""
LINKED = RECIPE, LEDGER
"""Files of a run that its page links to."""


def watch_report(run: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, *, every: int) -> Path:
    """Rewrite the page about a run until the run ends; meanwhile the browser reloads it."""
    place = Path(run)
    while True:  # until the last process of the run, or of each of its seeds, has recorded its end
        seeds = [] if (place / LEDGER).is_file() else seed_folders(place)
        last = [History.read(folder).last.get("event") for folder in seeds or [place]]
        if not _another_seed_follows(place, seeds) and all(event in ENDINGS for event in last):
            return build_report(run, out)
        build_report(run, out, refresh=every)
        time.sleep(every)


def _another_seed_follows(place: Path, seeds: Sequence[Path]) -> bool:
    """Whether the results of a fine-tuning with several seeds, written after the last one, are older than its newest seed."""
    if not seeds or not History.read(seeds[-1]).task.get("kind"):
        return False
    results, ledger = place / RESULTS, seeds[-1] / LEDGER
    return not results.is_file() or results.stat().st_mtime < ledger.stat().st_mtime


def build_report(
    run: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, *, refresh: int | None = None
) -> Path:
    """Write the page about a run, finished or not; with `refresh` the browser reloads it after so many seconds.

    For a folder of fine-tuning runs with several seeds, write one page per run and one about all.
    """
    folder = Path(run)
    page = Path(out) if out is not None else folder / REPORT
    check_page(page)
    if seeds := [] if (folder / LEDGER).is_file() else seed_folders(folder):
        runs = [History.read(seed) for seed in seeds]
        written = {one.run / REPORT: task_page(one, refresh) for one in runs}
        for place in written:
            check_page(place)
        links = [quote(os.path.relpath(place, page.parent)) for place in written]
        written[page] = seeds_page(folder, runs, links, refresh)
    else:
        history, beside = History.read(folder), page.parent.resolve() == folder.resolve()
        links = [name for name in LINKED if beside and (folder / name).is_file()]
        written = {page: task_page(history, refresh) if history.task.get("kind") else _page(history, links, refresh)}
    for place, content in written.items():
        write_file(place, content, "the report", "give another file with --out")
    return page


def _page(history: History, links: Sequence[str], refresh: int | None) -> str:
    example: dict[str, Any] = {"noisy": False}
    try:
        example = example_of_run(history)
    except UniclozeError as error:
        example["reason"] = str(error)
    lineage = mapping(history.start.get("lineage"))
    checkpoint = "No checkpoint is saved yet."
    if history.checkpoint:
        checkpoint = f"Newest checkpoint: {history.run / 'checkpoints' / history.checkpoint}"
    return render(
        "report/templates/run.html",
        cards=_cards(history),
        links=links,
        refresh=refresh,
        **head_of(history),
        **_curves(history),
        example=example,
        held_out=history.part == HELD_OUT,
        samples=filled_samples(history),
        lines=_commands(history),
        checkpoint=checkpoint,
        sources=[_source(source) for source in sequence(lineage.get("sources")) if isinstance(source, dict)],
        fingerprint=lineage.get("fingerprint") or "-",
        tokenizer=mapping(lineage.get("tokenizer")),
    )


def _source(source: Event) -> dict[str, Any]:
    """A source of the data as `lineage.json` describes it."""
    files = sequence(source.get("files"))
    parts = {"train": mapping(source.get("train")), "held out": mapping(source.get("heldout"))}
    return {
        "name": source.get("corpus", source.get("name", "-")),
        "counts": [len(files), source.get("documents"), source.get("duplicates")],
        "parts": [(name, *(part.get(key) for key in ("documents", "tokens", "bytes"))) for name, part in parts.items()],
        "files": [file for file in files if isinstance(file, dict)],
    }


def _cards(history: History) -> list[Card]:
    start, planned = history.start, history.planned_steps
    speeds = [speed for _, speed in history.curve("text_tokens_per_second")]
    tokens = [value for _, value in history.curve("text_tokens")]
    done = "" if planned is None else f"of {planned:,} planned"
    model = mapping(history.recipe.get("model"))
    size = f"{model.get('num_layers')} layers, hidden size {model.get('hidden_size')}" if model else ""
    return [
        *(_target_card(history, target) for target in history.evaluated or history.trained),
        *_words_card(history),
        ("parameters", count(start.get("parameters")), size),
        ("steps", f"{history.step:,}", done),
        ("text tokens", short(tokens[-1]) if tokens else "-", "seen in training"),
        ("speed", f"{statistics.median(speeds):,.0f}" if speeds else "-", "text tokens per second, median"),
        *cards_of_the_process(history),
    ]


def _target_card(history: History, target: str) -> Card:
    """Card with perplexity and bits per byte of a target that predicts tokens, or the mean loss of another target."""
    tokens = predicts_tokens(target)
    measure = "perplexity" if tokens else "loss"
    value = history.latest(measure, target)
    nothing = history.latest("predictions", target) == 0
    if value is None or nothing:
        why = "nothing to measure" if nothing else "not evaluated yet"
        return f"{history.part} {measure}, {target}", "-", why, series_class(target)
    step, event = next(reversed(history.evaluations.items()))
    name = f"{history.part} {measure}, {target}"
    bits = history.latest("bits_per_byte", target)
    more = _counts(history, target) if tokens and history.part == HELD_OUT else []
    more += [f"{short(bits)} bits per byte"] if tokens and bits is not None else []
    more += [] if tokens else ["nats per prediction"]
    predictions = number(mapping(event.get("predictions")).get(target))
    window = f"in {count(event.get('windows'))} windows of {count(event.get('window'))} tokens"
    when = f"after step {step:,}" if step else "before training"
    more += [f"{count(predictions)} predictions {window}, {when}"]
    return name, _perplexity(value) if tokens else f"{value:.3f}", "; ".join(more), series_class(target)


def _counts(history: History, target: str) -> list[str]:
    """Perplexities of counts on the same predictions; empty for a run without them."""
    baselines = mapping(history.start.get("baselines"))
    names = {"trigram": "a Kneser-Ney trigram", "unigram": "counted words"}
    found = history.counts.get(target, {})
    said = ", ".join(f"{name} {_perplexity(found[kind])}" for kind, name in names.items() if kind in found)
    counted, tokens = number(baselines.get("counted")), number(baselines.get("tokens"))
    part = counted is not None and tokens is not None and counted < 0.99 * tokens
    return [f"{said} (in {short(counted or 0)} of {short(tokens or 0)} tokens)" if part else said] if said else []


def _words_card(history: History) -> list[Card]:
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
    return [("content words in the top 5", top_5, more)]


def _perplexity(value: float) -> str:
    return short(value) if value >= 1e4 else f"{value:,.1f}"


def _curves(history: History) -> dict[str, list[Panel]]:
    """Training curves by target, evaluated curves by target and part; targets without perplexity have their own chart."""
    losses = [Line(name=target, points=history.curve("loss", target), smooth=True) for target in history.trained]
    perplexities, others = list[Line](), list[Line]()
    for target in history.evaluated:
        lines, key = (perplexities, "perplexity") if predicts_tokens(target) else (others, "loss")
        lines.append(Line(name=target, points=history.curve(key, target, evaluated=True)))
    part = history.part
    large = [
        ("Training loss, nats per prediction", line_chart(losses, title="training loss over steps")),
        (
            f"{part.capitalize()} perplexity",
            line_chart(perplexities, title=f"{part} perplexity over steps", logarithmic=True),
        ),
    ]
    if others:
        title = f"{part.capitalize()} loss, nats per prediction"
        large.append((title, line_chart(others, title=f"{part} loss over steps")))
    measures = (
        ("text_tokens_per_second", "Text tokens per second", True),
        ("learning_rate", "Learning rate", False),
        ("gradient_norm", "Gradient norm", True),
    )
    return {"large": large, "small": small_charts(history, measures)}


def _commands(history: History) -> list[tuple[str, str]]:
    run, planned = shlex.quote(str(history.run)), history.planned_steps
    able, lines = _abilities(history), []
    masked, whole = example_texts(history.run)
    if able & {"cloze", "stepwise"}:
        lines.append(("Fill the masks of a text", f"unicloze fill --model {run} --text {shlex.quote(masked)}"))
    if able & {"cloze", "causal"}:
        lines.append(("Score a text", f"unicloze score --model {run} --text {shlex.quote(whole)}"))
    if planned is not None and history.step < planned:
        return [("Continue this run", f"unicloze pretrain --out {run}"), *lines]
    steps = 2 * max(planned or history.step, history.steps_of_recipe or 0)
    return [*lines, ("Train on", f"unicloze pretrain --out {run} --training.steps {steps}")]


def _abilities(history: History) -> set[str]:
    """Abilities that the run's objective defines; empty if its recipe cannot be read."""
    try:
        objective = objective_of(load_recipe(history.run / RECIPE))
    except UniclozeError:
        return set()
    return {name for name in get_args(Ability) if part_with(objective, name) is not None}


_MOST_SAMPLES = 8
_SPACES = "\u0120", "\u2581"
"""How byte-level BPE and Unigram vocabularies write the space before a word."""

Masked = dict[int, Event]
"""The masked positions of a sample."""


def filled_samples(history: History) -> str | dict[str, Any]:
    """The newest samples, with the same samples before training; or why there are none."""
    if not history.samples:
        return "No samples yet: they are filled before the first step and after the last."
    step = max(history.samples)
    newest = _by_place(history.samples[step])
    if not _targets(newest):
        return "Nothing is filled in: this objective does not predict masked positions."
    times = [("after" if step else "untrained", newest)]
    if step and (before := _by_place(history.samples.get(0, []))):
        times.insert(0, ("before", before))
    columns = [(target, when, samples) for when, samples in times for target in _targets(samples)]
    hits = []
    for target, when, samples in columns:
        asked = [place for masked in samples.values() for place in masked.values() if not place["repeated"]]
        hit = [(place.get("word") is not False, _hit(place, target)) for place in asked]
        words, others = ([right for is_word, right in hit if is_word == word] for word in (True, False))
        name = f"after step {step:,}" if when == "after" else "before training"
        share = f"{sum(words) / max(1, len(words)):.1%}"
        counted = [f"{sum(each)} of {len(each)}" for each in (words, others)]
        hits.append((f"{name}, {target}", series_class(target), share, *counted))
    shown = []
    for sample, (key, masked) in zip(history.samples[step], newest.items(), strict=True):
        asked = [place for place in masked.values() if not place["repeated"]]
        if asked or not masked:  # more than runs of repeated tokens
            file, comma, rest = key[0].partition(",")
            rows = []
            for place in sorted(asked, key=lambda place: (_step(place), place["position"])):
                at = place["position"]
                found = [(samples.get(key, {}).get(at, {}), target, when) for target, when, samples in columns]
                rows.append((_step(place), at, str(place.get("truth", "")), [_filling(*one) for one in found]))
            text = _running_text([str(token) for token in sequence(sample.get("tokens"))], masked)
            name = file.replace("\\", "/").rpartition("/")[2] + comma + rest
            shown.append({"document": name, "text": text, "masked": rows})
    return {"hits": hits, "columns": [column[:2] for column in columns], "samples": shown[:_MOST_SAMPLES]}


def _by_place(samples: list[Event]) -> dict[tuple[str, int], Masked]:
    """The masked positions of each sample, by its document and the number of earlier samples of that document."""
    places: dict[tuple[str, int], Masked] = {}
    for sample in samples:
        document = str(sample.get("document"))
        repeat = sum(known == document for known, _ in places)
        masked = map(mapping, sequence(sample.get("masked")))
        at_positions = {at: place for place in masked if isinstance(at := place.get("position"), int)}
        places[document, repeat] = _marked(at_positions, [str(token) for token in sequence(sample.get("tokens"))])
    return places


def _marked(masked: Masked, tokens: list[str]) -> Masked:
    """The places, each with a flag whether it lies in a run of repeated tokens, which are easy to guess."""
    whole = {**dict(enumerate(tokens)), **{at: str(place.get("truth")) for at, place in masked.items()}}

    def repeated(at: int) -> bool:
        alike = [whole.get(at + offset) == whole[at] for offset in range(-2, 3)]
        return any(all(alike[first : first + 3]) for first in range(3))

    return {at: {**place, "repeated": repeated(at)} for at, place in masked.items()}


def _targets(samples: dict[tuple[str, int], Masked]) -> list[str]:
    places = [place for masked in samples.values() for place in masked.values()]
    names = [name for place in places for name, filled in place.items() if isinstance(filled, str)]
    return [name for name in dict.fromkeys(names) if name not in ("position", "step", "truth")]


def _running_text(tokens: list[str], masked: Masked) -> list[tuple[str, str, str, int]]:
    """The tokens as running text: the space before each, its kind, its characters, and if masked its step."""
    pieces = []
    spaced = any(token.startswith(_SPACES) for token in tokens)
    for position, token in enumerate(tokens):
        place = masked.get(position)
        truth = str(place.get("truth", token)) if place else token
        if spaced:
            glued, word = not truth.startswith(_SPACES), truth.removeprefix(_SPACES[0]).removeprefix(_SPACES[1])
        else:
            glued = truth.startswith("##") and len(truth) > 2
            word = truth[2:] if glued else truth
        kind = "masked" if place else ""
        if not place and token[:1] + token[-1:] in ("[]", "<>") and len(token) > 2:
            kind, glued, word = "special", False, token
        pieces.append(("" if glued or not position else " ", kind, word, _step(place or {})))
    return pieces


def _filling(place: Event, target: str, when: str) -> dict[str, Any]:
    """A target's best guess for a masked position; after training with its probability and the next guesses, if known."""
    guesses: list[tuple[str, str]] = []
    if target in place:
        top = [] if when == "before" else sequence(mapping(place.get("top")).get(target))
        pairs = [guess for guess in top if isinstance(guess, list) and len(guess) == 2 and number(guess[1]) is not None]
        known = [(token, _percent(share)) for token, share in pairs if isinstance(token, str)]
        guesses = [(str(place[target]), known[0][1] if known else ""), *known[1:]]
    return {"when": "before" if when == "before" else "", "guesses": guesses, "right": _hit(place, target)}


def _percent(share: float) -> str:
    return "< 1 %" if share < 0.01 else f"{100 * share:.0f} %"


def _hit(place: Event, target: str) -> bool:
    return target in place and place[target] == place.get("truth")


def _step(place: Event) -> int:
    """The factorization step, counted from 1 as in the paper."""
    step = place.get("step")
    return step + 1 if isinstance(step, int) else 1


ANY = "She opened the [MASK] and looked out of the window.", "She opened the door and looked out of the window."
"""Used if a run has no held-out sentences."""

MOST_TOKENS = 20
"""Maximum length of a sentence to show."""
_PLAIN = re.compile(r"(?:[^\W\d_]|[\s,\u3001])+[.!?\u3002]?")


def example_texts(run: Path) -> tuple[str, str]:
    """A held-out sentence of a run, with a content word masked and unmasked; a default if the run has none."""
    try:
        words = mapping(mapping(json.loads((run / BASELINES).read_text(encoding="utf-8"))["baselines"])["words"])
        tokenizer = Tokenizer.load(run)
        asked = [*zip(words["sentences"], words["places"], strict=True)]
        known = [each for each in asked if tokenizer.vocabulary.unk not in each[0]]
        if not known:
            return ANY
        fine = [each for each in known if len(each[0]) <= MOST_TOKENS and _PLAIN.fullmatch(tokenizer.decode(each[0]))]
        sentence, place = max(fine or known[:1], key=lambda each: len(each[0]))
        masked = [*sentence[:place], tokenizer.vocabulary.mask, *sentence[place + 1 :]]
        return tokenizer.decode(masked).strip(), tokenizer.decode(sentence).strip()
    except (OSError, ValueError, KeyError, TypeError, UniclozeError):
        return ANY

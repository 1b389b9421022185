"""Writes a self-contained static HTML page about a run, without network access or scripts."""

from __future__ import annotations

import json
import os
import re
import shlex
import statistics
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, get_args

from unicloze.decoding.inputs import objective_of, part_with
from unicloze.errors import UniclozeError
from unicloze.example import predicts_tokens
from unicloze.files import BASELINES, LEDGER, RECIPE, write_file
from unicloze.objectives import Ability
from unicloze.recipes import load_recipe
from unicloze.report.charts import Line, line_chart, short
from unicloze.report.frame import (
    REPORT,
    card,
    check_page,
    colophon,
    count,
    frame,
    heading_of,
    machine_card,
    origin_of,
    panel,
    recipe_section,
    reloading,
    status_of,
    time_card,
)
from unicloze.report.history import Event, History, TaskRun, mapping, number, sequence
from unicloze.report.picture import Fed
from unicloze.report.svg import series_class
from unicloze.report.task_page import seed_folders, seeds_page, task_page
from unicloze.text.tokenizers import Tokenizer

_MOST_FILES = 50
_NUMBER = ' class="number"'


def lineage_table(lineage: Event) -> str:
    """The origin of the data, from `lineage.json`; missing values are shown as a dash."""
    sources = [source for source in sequence(lineage.get("sources")) if isinstance(source, dict)]
    if not sources:
        return '<p class="nothing">The ledger has no lineage of the data.</p>'
    heads = _heads("source", "files", "documents", "duplicates", "part", "documents", "tokens", "bytes")
    table = (
        f'<table class="sources"><thead><tr>{heads}</tr></thead><tbody>{"".join(map(_rows, sources))}</tbody></table>'
    )
    tokenizer = mapping(lineage.get("tokenizer"))
    facts = [
        ("fingerprint of the data", _hash(lineage.get("fingerprint"))),
        (
            "fingerprint of the tokenizer",
            f"{_hash(tokenizer.get('fingerprint'))} ({count(tokenizer.get('vocab_size'))} ids)",
        ),
    ]
    rows = "".join(f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' for name, value in facts)
    panel = f'<div class="panel scroll">{table}<table class="facts">{rows}</table></div>'
    return panel + "".join(map(_files, sources))


def _rows(source: Event) -> str:
    train, heldout = mapping(source.get("train")), mapping(source.get("heldout"))
    files = len(sequence(source.get("files")))
    name = f'<th scope="row" rowspan="2">{escape(str(source.get("corpus", source.get("name", "-"))))}</th>'
    shared = "".join(
        f'<td class="number" rowspan="2">{value}</td>'
        for value in (count(files), count(source.get("documents")), count(source.get("duplicates")))
    )
    return f"<tr>{name}{shared}{_part('train', train)}</tr><tr>{_part('held out', heldout)}</tr>"


def _part(name: str, part: Event) -> str:
    values = "".join(f'<td class="number">{count(part.get(key))}</td>' for key in ("documents", "tokens", "bytes"))
    return f"<td>{name}</td>{values}"


def _files(source: Event) -> str:
    files = [file for file in sequence(source.get("files")) if isinstance(file, dict)]
    rows = "".join(
        f'<tr><td class="hash">{escape(str(file.get("path")))}</td><td class="number">{count(file.get("size"))}</td>'
        f"<td>{_hash(file.get('hash'))}</td></tr>"
        for file in files[:_MOST_FILES]
    )
    rest = f'<p class="note">and {len(files) - _MOST_FILES:,} more</p>' if len(files) > _MOST_FILES else ""
    heads = _heads("file", "bytes", "BLAKE2")
    title = f"Files of {escape(str(source.get('corpus', source.get('name', '-'))))}"
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<details><summary>{title}</summary><div class="scroll">{table}</div>{rest}</details>'


def _heads(*names: str) -> str:
    """Column headings; those of numbers are right-aligned."""
    numbers = {"files", "documents", "duplicates", "tokens", "bytes"}
    return "".join(f'<th scope="col"{_NUMBER if name in numbers else ""}>{name}</th>' for name in names)


def _hash(value: Any) -> str:
    return f'<span class="hash">{escape(str(value)) if value else "-"}</span>'


_MOST_SAMPLES = 8
_KNOWN = {"position", "step", "truth"}
_SPACES = "Ġ", "\u2581"
"""How byte-level BPE and Unigram vocabularies write the space before a word."""

Places = dict[tuple[str, int], dict[int, Event]]
"""The masked positions of each sample; its key is the document and the number of earlier samples of that document."""


def filled_samples(history: History) -> str:
    """The newest samples, each beside the same sample before training.

    Hits are marked by a tick, so that colour alone carries no meaning.
    """
    after_step = max(history.samples, default=0)
    if not history.samples:
        return '<p class="nothing">No samples yet: they are filled before the first step and after the last.</p>'
    trained = after_step > 0
    before = _by_place(history.samples.get(0, [])) if trained else {}
    after = history.samples[after_step]
    if not _targets(_by_place(after)):
        return '<p class="nothing">Nothing is filled in: this objective does not predict masked positions.</p>'
    columns = [("before", before)] * bool(before) + [("after" if trained else "untrained", _by_place(after))]
    keys = list(columns[-1][1])
    shown = [number for number, key in enumerate(keys) if _worth_showing(columns[-1][1][key])][:_MOST_SAMPLES]
    cards = [_sample(after[number], keys[number], columns, opened=place < 2) for place, number in enumerate(shown)]
    return _score(columns, after_step) + "".join(cards)


def _by_place(samples: list[Event]) -> Places:
    places: Places = {}
    for sample in samples:
        document = str(sample.get("document"))
        repeat = sum(known == document for known, _ in places)
        masked = map(mapping, sequence(sample.get("masked")))
        found = {at: place for place in masked if isinstance(at := place.get("position"), int)}
        places[document, repeat] = _marked(found, [str(token) for token in sequence(sample.get("tokens"))])
    return places


def _marked(masked: dict[int, Event], tokens: list[str]) -> dict[int, Event]:
    """The places, each with a flag whether it lies in a run of repeated tokens, which are easy to guess."""
    whole = {**dict(enumerate(tokens)), **{at: str(place.get("truth")) for at, place in masked.items()}}

    def repeated(at: int) -> bool:
        alike = [whole.get(at + offset) == whole[at] for offset in range(-2, 3)]
        return any(all(alike[first : first + 3]) for first in range(3))

    return {at: {**place, "repeated": repeated(at)} for at, place in masked.items()}


def _worth_showing(masked: dict[int, Event]) -> bool:
    """Whether a sample has masked tokens outside runs of repeated ones, or none at all."""
    return not masked or not all(place["repeated"] for place in masked.values())


def _is_word(place: Event) -> bool:
    """Whether the original token is a word or part of one; guessed for older ledgers, which do not record it."""
    word = place.get("word")
    return word if isinstance(word, bool) else any(map(str.isalpha, str(place.get("truth", "")).lstrip("\u0120\u2581")))


def _targets(places: Places) -> list[str]:
    everything = [place for masked in places.values() for place in masked.values()]
    names = [name for place in everything for name, said in place.items() if isinstance(said, str)]
    return [name for name in dict.fromkeys(names) if name not in _KNOWN]


def _score(columns: list[tuple[str, Places]], step: int) -> str:
    """Table of the numbers of right fillings, separately for words and other tokens, without repeated tokens."""
    rows = []
    for when, places in columns:
        everything = [place for masked in places.values() for place in masked.values() if not place["repeated"]]
        words = [place for place in everything if _is_word(place)]
        others = [place for place in everything if not _is_word(place)]
        for target in _targets(places):
            hits, other_hits = (sum(_hit(place, target) for place in some) for some in (words, others))
            name = f"after step {step:,}" if when == "after" else "before training"
            fill = f'<span class="fill {series_class(target)}" style="width:{hits / max(1, len(words)):.1%}"></span>'
            rows.append(
                f'<tr><th scope="row">{name}, {escape(target)}</th><td class="bar"><div class="track">{fill}</div></td>'
                f'<td class="number">{hits} of {len(words)}</td><td class="number">{other_hits} of {len(others)}</td></tr>'
            )
    caption = "<caption>Masked tokens whose most likely filling is right</caption>"
    kinds = "".join(f'<th class="number" scope="col">{kind}</th>' for kind in ("words", "other signs"))
    heads = f'<th></th><th class="bar"></th>{kinds}'
    return f'<table class="score">{caption}<thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _sample(sample: Event, key: tuple[str, int], columns: list[tuple[str, Places]], *, opened: bool) -> str:
    masked = columns[-1][1][key]
    text = _running_text([str(token) for token in sequence(sample.get("tokens"))], masked)
    heads = [f'<th scope="col">{name}</th>' for name in ("step", "position", "truth")]
    targets = []
    for when, places in columns:
        for target in _targets(places):
            heads.append(f'<th scope="col" class="{when}">{escape(target)} {when}</th>')
            targets.append((places.get(key, {}), target, when != "before"))
    rows = []
    shown = [place for place in masked.values() if not place["repeated"]]
    for place in sorted(shown, key=lambda place: (_step(place), place["position"])):
        cells = "".join(
            _cell(mapping(places.get(place["position"])), target, whole=whole) for places, target, whole in targets
        )
        rows.append(
            f'<tr><td class="number">{_step(place)}</td><td class="number">{place["position"]}</td>'
            f"<td><code>{escape(str(place.get('truth', '')))}</code></td>{cells}</tr>"
        )
    head = f"<thead><tr>{''.join(heads)}</tr></thead>"
    table = f'<table class="fillings">{head}<tbody>{"".join(rows)}</tbody></table>'
    return (
        f'<details{" open" * opened}><summary>{escape(_name(key[0]))}</summary><p class="sample">{text}</p>'
        f'<div class="scroll">{table}</div></details>'
    )


def _name(document: str) -> str:
    """The document without the folders in its path."""
    file, comma, rest = document.partition(",")
    return file.replace("\\", "/").rpartition("/")[2] + comma + rest


def _running_text(tokens: list[str], masked: dict[int, Event]) -> str:
    """The tokens as running text, with each masked token in a box with its step."""
    parts = []
    spaced = any(token.startswith(_SPACES) for token in tokens)
    for position, token in enumerate(tokens):
        place = masked.get(position)
        truth = str(place.get("truth", token)) if place else token
        glued, word = _spell(truth, spaced=spaced)
        space = "" if glued or not position else " "
        if place:
            parts.append(f"{space}<mark>{escape(word)}<sup>{_step(place)}</sup></mark>")
        elif token[:1] + token[-1:] in ("[]", "<>") and len(token) > 2:
            parts.append(f'{" " if position else ""}<span class="special">{escape(token)}</span>')
        else:
            parts.append(space + escape(word))
    return "".join(parts)


def _spell(token: str, *, spaced: bool) -> tuple[bool, str]:
    """Whether a token continues the previous word, and its text; `spaced` if tokens include a leading space."""
    if spaced:
        return not token.startswith(_SPACES), token.removeprefix("Ġ").removeprefix("\u2581")
    return (True, token[2:]) if token.startswith("##") and len(token) > 2 else (False, token)


def _cell(place: Event, target: str, *, whole: bool) -> str:
    """A target's best guess for a masked position; if `whole`, with its probability and the next guesses, if known."""
    style = "" if whole else "before"
    if target not in place:
        return f'<td class="{style}"></td>'
    guesses = [guess for guess in sequence(mapping(place.get("top")).get(target)) if whole and _is_guess(guess)]
    said = f"<code>{escape(str(place[target]))}</code>" + (f" {_percent(guesses[0][1])}" if guesses else "")
    more = " ".join(f"<span><code>{escape(token)}</code> {_percent(share)}</span>" for token, share in guesses[1:])
    others = f'<div class="others">{more}</div>' if more else ""
    if _hit(place, target):
        return f'<td class="hit {style}">{said} <b title="right">✓</b>{others}</td>'
    return f'<td class="{style}">{said}{others}</td>'


def _is_guess(guess: Any) -> bool:
    return isinstance(guess, list) and len(guess) == 2 and isinstance(guess[0], str) and number(guess[1]) is not None


def _percent(share: float) -> str:
    return "&lt; 1 %" if share < 0.01 else f"{100 * share:.0f} %"


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

"""Filled samples as HTML: the truth beside what the model said before and after training."""

from __future__ import annotations

from html import escape

from unicloze.report.curves import series_class
from unicloze.report.history import Event, History, mapping, sequence

_MOST_SAMPLES = 8
_KNOWN = {"position", "step", "truth"}
_SPACES = "Ġ", "\u2581"
"""The space before a word, as byte-level BPE and as Unigram vocabularies spell it."""

Places = dict[tuple[str, int], dict[int, Event]]
"""The masked positions of each sample, which is named by its document and how often that came before."""


def filled_samples(history: History) -> str:
    """The samples of the newest pass, each beside its twin from before training.

    Hits are marked by a tick, misses by nothing: no meaning hangs on colour alone.
    """
    after_step = max(history.samples, default=0)
    if not history.samples:
        return '<p class="nothing">No samples yet: they are taken before the first step and after the last.</p>'
    trained = after_step > 0
    before = _by_place(history.samples.get(0, [])) if trained else {}
    after = history.samples[after_step]
    if not _targets(_by_place(after)):
        return '<p class="nothing">Nothing is filled in: what this objective predicts does not stand at masked positions.</p>'
    columns = [("before", before)] * bool(before) + [("after" if trained else "untrained", _by_place(after))]
    cards = [_sample(sample, number, columns) for number, sample in enumerate(after[:_MOST_SAMPLES])]
    return _score(columns, after_step) + "".join(cards)


def _by_place(samples: list[Event]) -> Places:
    places: Places = {}
    for sample in samples:
        document = str(sample.get("document"))
        repeat = sum(known == document for known, _ in places)
        masked = map(mapping, sequence(sample.get("masked")))
        places[document, repeat] = {at: place for place in masked if isinstance(at := place.get("position"), int)}
    return places


def _targets(places: Places) -> list[str]:
    names = [name for masked in places.values() for place in masked.values() for name in place if name not in _KNOWN]
    return list(dict.fromkeys(names))


def _score(columns: list[tuple[str, Places]], step: int) -> str:
    """How many of all are right."""
    rows = []
    for when, places in columns:
        everything = [place for masked in places.values() for place in masked.values()]
        for target in _targets(places):
            hits = sum(_hit(place, target) for place in everything)
            name = f"after step {step:,}" if when == "after" else "before training"
            fill = (
                f'<span class="fill {series_class(target)}" style="width:{hits / max(1, len(everything)):.1%}"></span>'
            )
            rows.append(
                f'<tr><th scope="row">{name}, {escape(target)}</th><td class="bar"><div class="track">{fill}</div></td>'
                f'<td class="number">{hits} of {len(everything)}</td></tr>'
            )
    caption = "<caption>Masked tokens whose most likely filling is the truth</caption>"
    return f'<table class="score">{caption}{"".join(rows)}</table>'


def _sample(sample: Event, number: int, columns: list[tuple[str, Places]]) -> str:
    document = str(sample.get("document"))
    key = list(columns[-1][1])[number]
    masked = columns[-1][1][key]
    text = _running_text([str(token) for token in sequence(sample.get("tokens"))], masked)
    heads = [f'<th scope="col">{name}</th>' for name in ("step", "position", "truth")]
    targets = []
    for when, places in columns:
        for target in _targets(places):
            heads.append(f'<th scope="col">{escape(target)} {when}</th>')
            targets.append((places.get(key, {}), target))
    rows = []
    for place in sorted(masked.values(), key=lambda place: (_step(place), place["position"])):
        cells = "".join(_cell(mapping(places.get(place["position"])), target) for places, target in targets)
        rows.append(
            f'<tr><td class="number">{_step(place)}</td><td class="number">{place["position"]}</td>'
            f"<td><code>{escape(str(place.get('truth', '')))}</code></td>{cells}</tr>"
        )
    head = f"<thead><tr>{''.join(heads)}</tr></thead>"
    table = f'<table class="fillings">{head}<tbody>{"".join(rows)}</tbody></table>'
    opened = " open" * (number < 2)
    return (
        f'<details{opened}><summary>{escape(_name(document))}</summary><p class="sample">{text}</p>'
        f'<div class="scroll">{table}</div></details>'
    )


def _name(document: str) -> str:
    """The document without the folders before its file."""
    file, comma, rest = document.partition(",")
    return file.replace("\\", "/").rpartition("/")[2] + comma + rest


def _running_text(tokens: list[str], masked: dict[int, Event]) -> str:
    """The tokens as words, each masked one as the truth in a box with its step."""
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
    """Whether a piece continues the word before it, and how it reads; `spaced` if pieces begin with the space before them."""
    if spaced:
        return not token.startswith(_SPACES), token.removeprefix("Ġ").removeprefix("\u2581")
    return (True, token[2:]) if token.startswith("##") and len(token) > 2 else (False, token)


def _cell(place: Event, target: str) -> str:
    if target not in place:
        return "<td></td>"
    word = f"<code>{escape(str(place[target]))}</code>"
    return f'<td class="hit">{word} <b title="right">✓</b></td>' if _hit(place, target) else f"<td>{word}</td>"


def _hit(place: Event, target: str) -> bool:
    return target in place and place[target] == place.get("truth")


def _step(place: Event) -> int:
    """The factorization step, counted from 1 as in the paper."""
    step = place.get("step")
    return step + 1 if isinstance(step, int) else 1

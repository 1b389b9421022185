"""Filled samples as HTML: the original tokens beside the model's fillings before and after training."""

from __future__ import annotations

from html import escape
from typing import Any

from unicloze.report.curves import series_class
from unicloze.report.history import Event, History, mapping, number, sequence

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

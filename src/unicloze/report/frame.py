"""The common frame of all pages: a self-contained static HTML file."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from unicloze.errors import UniclozeError
from unicloze.files import begins_like
from unicloze.report.history import History, mapping, number
from unicloze.report.svg import series_class

_NO_LETTER = re.compile(r"[^a-z0-9]+")

Style = tuple[str, str]
"""A package and the name of a style sheet in it."""

PAGE_STYLE: Style = ("unicloze.report", "page.css")


_BEGIN = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
"""


def check_page(page: Path) -> None:
    """Refuse to replace a file that is not a page written by unicloze."""
    if page.is_file() and not begins_like(page, re.escape(_BEGIN).encode()):
        raise UniclozeError(
            f"{page} is not a page of unicloze and would be replaced: move it away, or give another --out."
        )


def reloading(page: str, seconds: int) -> str:
    """A page that the browser reloads after some seconds."""
    return page.replace(_BEGIN, f'{_BEGIN}<meta http-equiv="refresh" content="{seconds}">\n', 1)


def frame(
    *,
    name: str,
    window_title: str,
    status: str,
    subtitle: str,
    sections: Sequence[tuple[str, str]],
    verdict: str = "",
    cards: str = "",
    footer: str = "",
    styles: Sequence[Style] = (),
    links: Sequence[str] = (),
) -> str:
    """A page as HTML."""
    style = "".join(
        resources.files(package).joinpath(sheet).read_text("utf-8") for package, sheet in (PAGE_STYLE, *styles)
    )
    body = "\n".join(
        f'<section id="{_anchor(title)}"><h2>{title}</h2>\n{content}</section>' for title, content in sections
    )
    linked = [f'<a href="#{_anchor(title)}">{title}</a>' for title, _ in sections]
    linked += [f'<a href="{escape(quote(place), quote=True)}">{escape(place)}</a>' for place in links]
    return f"""{_BEGIN}<title>{escape(window_title)}</title>
<style>
{style}</style>
</head>
<body>
<main>
<header>
<h1>{escape(name)}<span class="status">{escape(status)}</span></h1>
<p class="subtitle">{escape(subtitle)}</p>
{f'<p class="verdict">{escape(verdict[:1].upper() + verdict[1:])}.</p>' if verdict else ""}
{f'<div class="cards">{cards}</div>' if cards else ""}
<nav class="contents" aria-label="Contents">{" ".join(linked)}</nav>
</header>
{body}
{f"<footer>{escape(footer)}</footer>" if footer else ""}
</main>
</body>
</html>
"""


def _anchor(title: str) -> str:
    """HTML id of a section."""
    return _NO_LETTER.sub("-", title.lower()).strip("-")


REPORT = "report.html"
"""File name of the page in a run directory."""


def card(name: str, value: str, more: str, target: str | None = None) -> str:
    """A figure at the top of a page, as HTML; all arguments are plain text."""
    style = f" {series_class(target)}" if target else ""
    return (
        f'<div class="card{style}"><div class="name">{escape(name)}</div><div class="value">{escape(value)}</div>'
        f'<div class="more">{escape(more)}</div></div>'
    )


def heading_of(run: Path) -> str:
    """What the page of a run is headed by: the name of its folder; of one of several seeds behind that of them all."""
    place = run.resolve()
    return f"{place.parent.name}, {place.name}" if place.name.startswith("seed-") else place.name


def panel(title: str, content: str) -> str:
    """A framed part of a page, as HTML."""
    return f'<figure class="panel"><h3>{escape(title)}</h3>{content}</figure>'


def score_table(heads: Sequence[str], rows: Sequence[str], names: int) -> str:
    """A table of scores, as HTML."""
    head = "".join(
        f'<th scope="col" class="{"number" if place >= names else ""}">{escape(name)}</th>'
        for place, name in enumerate(heads)
    )
    return f'<table class="scores"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def score_row(names: Sequence[str], numbers: Sequence[str], *, bold: bool = False) -> str:
    """A row of a table of scores; names are HTML, numbers plain text."""
    cells = [f"<td>{name}</td>" for name in names]
    cells += [f'<td class="number">{escape(number)}</td>' for number in numbers]
    return f"<tr{' class=best' if bold else ''}>{''.join(cells)}</tr>"


def origin_of(history: History) -> str:
    """The recipe, the paper and the place in it that its values come from."""
    provenance, name = mapping(history.recipe.get("provenance")), history.recipe.get("name")
    parts = [f"recipe {name}" if name else None, *(provenance.get(key) for key in ("paper", "place"))]
    return ". ".join(str(part) for part in parts if part)


def machine_card(history: History) -> str:
    """Card with device, precision and threads."""
    start, threads = history.start, history.start.get("threads")
    parts = start.get("precision"), f"{threads} thread{'s' * (threads != 1)}" if threads else None
    return card("device", str(start.get("device", "-")), ", ".join(str(part) for part in parts if part))


def time_card(history: History) -> str:
    """Card with the running time."""
    starts = f"over {history.processes} starts"
    once = "from the first start to the last entry"
    return card("time", duration(history.seconds), starts if history.processes > 1 else once)


def duration(seconds: float) -> str:
    """A duration in words, such as 3 min 5 s."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def status_of(history: History) -> str:
    """The status of the run, in a few words."""
    last, planned = history.last, history.planned_steps
    if last.get("event") == "failed":
        return f"failed after step {history.step:,}: {last.get('message')}"
    if last.get("event") == "end" or (planned is not None and history.step >= planned):
        return "finished"
    if last.get("event") == "stop":
        return f"stopped by signal {last.get('signal')} after step {history.step:,}"
    return "still running, or killed"


def colophon(history: History) -> str:
    """The footer: time of the last ledger entry, and software versions."""
    versions = ", ".join(f"{name} {version}" for name, version in mapping(history.start.get("versions")).items())
    when = number(history.last.get("time"))
    day = f"Last entry of the ledger: {datetime.fromtimestamp(when, UTC):%Y-%m-%d %H:%M} UTC. " if when else ""
    return f"{day}Trained with {versions}." if versions else day


def recipe_section(history: History) -> str:
    """The recipe's note and all its settings."""
    note = mapping(history.recipe.get("provenance")).get("note")
    text = yaml.safe_dump(_plain(history.recipe), sort_keys=False, allow_unicode=True, width=110)
    lead = f'<p class="lead">{escape(str(note))}</p>' if note else ""
    return f"{lead}<details><summary>All settings, as resolved</summary><pre>{escape(text)}</pre></details>"


def _plain(value: object) -> object:
    """The value with everything that YAML cannot represent converted to strings."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | None) and not _odd(value) else str(value)


def _odd(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def count(value: Any) -> str:
    """A number with thousands separators, or a dash if it is not a number."""
    counted = number(value)
    return "-" if counted is None else f"{counted:,.0f}"

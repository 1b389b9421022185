"""The common frame of all pages: a self-contained static HTML file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from unicloze.errors import UniclozeError
from unicloze.files import begins_like

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

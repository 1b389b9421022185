"""The common frame of all pages: a self-contained static HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import resources

Style = tuple[str, str]
"""A package and the name of a style sheet in it."""

PAGE_STYLE: Style = ("unicloze.report", "page.css")


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
) -> str:
    """A page as HTML.

    Args:
        name: Heading, as plain text.
        window_title: Title of the browser window, as plain text.
        status: Text beside the heading, as plain text.
        subtitle: Text below the heading, as plain text.
        sections: Heading and content of each section, as HTML.
        verdict: Interpretation of the figures, as plain text.
        cards: Cards at the top, as HTML.
        footer: Last line, as plain text.
        styles: Additional style sheets.
    """
    style = "".join(
        resources.files(package).joinpath(sheet).read_text("utf-8") for package, sheet in (PAGE_STYLE, *styles)
    )
    body = "\n".join(f"<section><h2>{title}</h2>\n{content}</section>" for title, content in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(window_title)}</title>
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
</header>
{body}
{f"<footer>{escape(footer)}</footer>" if footer else ""}
</main>
</body>
</html>
"""

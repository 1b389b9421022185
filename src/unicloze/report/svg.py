"""SVG as text: the only writer of its elements, which escapes what they say and shortens their numbers."""

from __future__ import annotations

import html
from collections.abc import Iterable

Attribute = str | float | None
"""Text, a number in SVG's units, or None for none."""


def element(name: str, *content: str, **attributes: Attribute) -> str:
    """An element.

    Args:
        name: Its name.
        content: The elements and the escaped text within, without anything between them.
        attributes: By name, with `_` for `-`, or behind a name that Python reserves.
    """
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    written = "".join(
        f' {key}="{escape(value) if isinstance(value, str) else number(value)}"' for key, value in given.items()
    )
    return f"<{name}{written}>{''.join(content)}</{name}>" if content else f"<{name}{written}/>"


def picture(
    content: Iterable[str],
    *,
    title: str,
    width: float,
    height: float,
    own_size: bool = False,
    **attributes: Attribute,
) -> str:
    """A whole picture, an element on each line.

    Args:
        content: What it shows.
        title: For those who cannot see it.
        width: Of its content.
        height: Likewise.
        own_size: Show it at this size; else it is scaled to the place it stands in.
        attributes: More of the `<svg>` element.
    """
    attributes["viewBox"] = f"0 0 {number(width)} {number(height)}"
    attributes |= {"width": width, "height": height} if own_size else {}
    return element("svg", "\n".join(["", *content, ""]), **attributes, role="img", aria_label=title)


def line(points: Iterable[tuple[float, float]], class_: str, **attributes: Attribute) -> str:
    """A line through some points."""
    return element("path", class_=class_, d="M" + "L".join(f"{number(x)} {number(y)}" for x, y in points), **attributes)


def text(
    content: str,
    x: float,
    y: float,
    class_: str,
    *,
    size: float | None = None,
    anchor: str = "start",
    bold: bool = False,
    turned: float = 0,
) -> str:
    """A line of text.

    Args:
        content: As plain text.
        x: Where its anchor is.
        y: Middle of its height.
        class_: Its class in the style sheet.
        size: Of the font, that of the style sheet if not given.
        anchor: `start`, `middle` or `end`: which part of it is at (x, y).
        bold: In bold.
        turned: Degrees clockwise around (x, y).
    """
    # Not dominant-baseline, which many renderers do not know.
    return element(
        "text",
        escape(content),
        class_=class_,
        x=x,
        y=y,
        dy=".35em",
        font_size=size,
        text_anchor=anchor if anchor != "start" else None,
        font_weight="600" if bold else None,
        transform=f"rotate({number(turned)} {number(x)} {number(y)})" if turned else None,
    )


def escape(content: str) -> str:
    """Text without what XML reads as its own, and without the control characters that it forbids."""
    return html.escape("".join(character if character >= " " else " " for character in content))


def number(value: float) -> str:
    """A number with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"

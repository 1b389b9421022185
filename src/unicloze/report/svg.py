"""Writes SVG elements as text, with escaping and rounded numbers."""

from __future__ import annotations

import html
from collections.abc import Iterable

Attribute = str | float | None
"""A string, a number in SVG units, or None to omit the attribute."""


def element(name: str, *content: str, **attributes: Attribute) -> str:
    """An element."""
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
    """An `<svg>` element with one child element per line."""
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
        content: The text, as plain text.
        x: Horizontal position of the anchor.
        y: Vertical centre.
        class_: Class in the style sheet.
        size: Font size; default: that of the style sheet.
        anchor: Part of the text at (x, y): `start`, `middle` or `end`.
        bold: In bold.
        turned: Rotation around (x, y), in degrees clockwise.
    """
    # Not dominant-baseline, which many renderers do not support.
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
    """Escape text for XML, with control characters replaced by spaces."""
    return html.escape("".join(character if character >= " " else " " for character in content))


def number(value: float) -> str:
    """A number with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"

"""Writes SVG elements as text, with escaping and rounded numbers."""

from __future__ import annotations

import html
import importlib.util
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from unicloze.errors import UniclozeError

if TYPE_CHECKING:
    from PIL import ImageFont

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


COLOURS = {
    "paper": ("#ffffff", "#161a22"),
    "ink": ("#1d2433", "#e7eaf0"),
    "muted": ("#6a7487", "#98a2b5"),
    "empty": ("#eef1f5", "#232936"),
    "context": ("#a8b9d0", "#566b8f"),
    "mask": ("#e89b2c", "#e0a043"),
    "random": ("#d2554a", "#e57368"),
    "original": ("#239b8c", "#35b3a3"),
    "pseudo": ("#8557e6", "#a583f7"),
    "memory": ("#c0637e", "#d57f98"),
}
"""Colour of each role in light and dark mode; distinguishable with common colour blindness."""

MONO_WIDTH, SANS_WIDTH = 0.605, 0.56
"""Width of a character in ems: exact for fixed-width fonts, an upper average for others."""

_MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
_SANS = "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"
_PIXELS = 2
_LINE = 2.0


@dataclass(frozen=True, kw_only=True)
class Label:
    """A line of text."""

    x: float  # horizontal position of the anchor
    y: float  # vertical centre
    text: str  # the text
    size: float = 12  # font size
    role: str = "ink"  # role that determines its colour
    anchor: Literal["start", "middle", "end"] = "start"  # part of the text at (x, y)
    upwards: bool = False  # rotated by 90 degrees to read upwards
    mono: bool = False  # in a fixed-width font
    bold: bool = False  # in bold


@dataclass
class Drawing:
    """Shapes drawn in this order: rectangles (x, y, width, height, role), lines (points, role), labels.

    Notebooks display it as PNG if Pillow is installed, otherwise as SVG.
    """

    width: float  # width in SVG units; a PNG has twice as many pixels
    height: float  # height in SVG units
    title: str  # alternative text
    rectangles: list[tuple[float, float, float, float, str]] = field(default_factory=list)
    lines: list[tuple[list[tuple[float, float]], str]] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)

    def to_svg(self) -> str:
        """The drawing as a self-contained `<svg>` element whose styles do not affect the rest of a page."""
        styles = element("style", _style(sorted({role for _, role in self.lines})))
        parts = [styles, element("rect", class_="paper", width=self.width, height=self.height, rx=10)]
        for role, run in _runs(self.rectangles):
            parts.append(element("path", class_=role, d="".join(_rectangle(*place) for place in run)))
        parts += [line(points, f"line {role}", stroke_width=_LINE) for points, role in self.lines]
        parts += [_svg_label(label) for label in self.labels]
        return picture(
            parts, title=self.title, width=self.width, height=self.height,
            xmlns="http://www.w3.org/2000/svg", class_="unicloze", own_size=True,
        )  # fmt: skip

    def to_png(self) -> bytes:
        """The drawing as PNG, in light colours."""
        try:
            from PIL import Image, ImageDraw
            from PIL.PngImagePlugin import PngInfo
        except ImportError as error:
            raise UniclozeError("a PNG picture needs Pillow: pip install pillow, or name the file .svg.") from error
        image = Image.new("RGB", (round(self.width * _PIXELS), round(self.height * _PIXELS)), COLOURS["paper"][0])
        pen = ImageDraw.Draw(image)
        for x, y, w, h, role in self.rectangles:
            left, top, right, bottom = (round(edge * _PIXELS) for edge in (x, y, x + w, y + h))
            if right > left and bottom > top:
                pen.rectangle((left, top, right - 1, bottom - 1), fill=COLOURS[role][0])
        for points, role in self.lines:
            path = [(x * _PIXELS, y * _PIXELS) for x, y in points]
            pen.line(path, fill=COLOURS[role][0], width=round(_LINE * _PIXELS), joint="curve")
        for label in self.labels:
            font = _font(label)
            start, _, end, _ = font.getbbox(label.text)
            canvas = Image.new("L", (max(1, round(end - start) + 2), round(label.size * _PIXELS * 1.6)))
            ImageDraw.Draw(canvas).text((-start, canvas.height / 2), label.text, fill=255, font=font, anchor="lm")
            shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[label.anchor]
            x, y = label.x * _PIXELS, label.y * _PIXELS
            if label.upwards:
                canvas = canvas.transpose(Image.Transpose.ROTATE_90)
                place = round(x - canvas.width / 2), round(y - canvas.height * (1 - shift))
            else:
                place = round(x - canvas.width * shift), round(y - canvas.height / 2)
            image.paste(COLOURS[label.role][0], place, canvas)
        buffer = io.BytesIO()
        written_by = PngInfo()
        written_by.add_text("Software", "unicloze")
        image.save(buffer, "PNG", optimize=True, pnginfo=written_by)
        return buffer.getvalue()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str | bytes]:
        """The IPython display hook; returns only one format, since notebooks store all they get."""
        if importlib.util.find_spec("PIL") is None:
            return {"image/svg+xml": self.to_svg()}
        return {"image/png": self.to_png()}


def _font(label: Label) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """DejaVu, which covers many scripts, if the system has it; otherwise Pillow's built-in font."""
    from PIL import ImageFont

    size = label.size * _PIXELS
    name = f"DejaVuSans{'Mono' if label.mono else ''}{'-Bold' if label.bold else ''}.ttf"
    try:
        return ImageFont.truetype(name, size)
    except OSError:
        return ImageFont.load_default(size)


def _style(lined: Iterable[str]) -> str:
    """CSS with the fill colours of all roles, and the stroke colours of roles used by lines."""
    light, dark = (
        "".join(f".unicloze .{role}{{fill:{colours[i]}}}" for role, colours in COLOURS.items())
        + "".join(f".unicloze .line.{role}{{fill:none;stroke:{COLOURS[role][i]}}}" for role in lined)
        for i in (0, 1)
    )
    fonts = f".unicloze text{{font-family:{_SANS}}}.unicloze .mono{{font-family:{_MONO};white-space:pre}}"
    return f"{fonts}{light}@media(prefers-color-scheme:dark){{{dark}}}"


def _runs(
    rectangles: Iterable[tuple[float, float, float, float, str]],
) -> list[tuple[str, list[tuple[float, float, float, float]]]]:
    runs: list[tuple[str, list[tuple[float, float, float, float]]]] = []
    for x, y, w, h, role in rectangles:
        if not runs or runs[-1][0] != role:
            runs.append((role, []))
        runs[-1][1].append((x, y, w, h))
    return runs


def _rectangle(x: float, y: float, width: float, height: float) -> str:
    """A rectangle as part of a path."""
    return f"M{number(x)} {number(y)}h{number(width)}v{number(height)}h{number(-width)}z"


def _svg_label(label: Label) -> str:
    return text(
        label.text,
        label.x,
        label.y,
        f"{label.role} mono" if label.mono else label.role,
        size=label.size,
        anchor=label.anchor,
        bold=label.bold,
        turned=-90 if label.upwards else 0,
    )


def series_class(name: str) -> str:
    """Style class of a series, by its target: `s-ae` for `ae` and for `one part.ae`."""
    return "s-" + re.sub(r"[^\w-]", "-", name.rpartition(".")[2])

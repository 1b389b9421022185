"""Drawings of rectangles and labels, as SVG and as PNG."""

from __future__ import annotations

import importlib.util
import io
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

from markupsafe import Markup

from unicloze.errors import UniclozeError
from unicloze.report.frame import render

if TYPE_CHECKING:
    from PIL import ImageFont

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

_PIXELS = 2


def cut(text: str, most: int, *, kept: float = 1.0) -> str:
    """A text of at most so many characters, of which this share from its beginning."""
    if len(text) <= most:
        return text
    first = max(0, round(kept * (most - 1)))
    return f"{text[:first]}…{text[first + len(text) - most + 1 :]}"


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
    """Shapes drawn in this order: rectangles (x, y, width, height, role), labels.

    Notebooks display it as PNG if Pillow is installed, otherwise as SVG.
    """

    width: float  # width in SVG units; a PNG has twice as many pixels
    height: float  # height in SVG units
    title: str  # alternative text
    rectangles: list[tuple[float, float, float, float, str]] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)

    def write(self, text: str, x: float, y: float, **style: Any) -> None:
        """Add a label."""
        self.labels.append(Label(x=x, y=y, text=text, **style))

    def to_svg(self) -> Markup:
        """The drawing as a self-contained `<svg>` element whose styles do not affect the rest of a page."""
        runs = ((role, list(run)) for role, run in groupby(self.rectangles, key=itemgetter(4)))
        return render("report/templates/drawing.svg", **vars(self), colours=COLOURS, runs=runs)

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

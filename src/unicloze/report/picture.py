"""Draws the mask picture, which shows the visibility between the slots of one example, as SVG or PNG."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from unicloze.errors import UsageError
from unicloze.files import write_file
from unicloze.report.drawing import MONO_WIDTH, SANS_WIDTH, Drawing, Label
from unicloze.report.example_view import ExampleView, Slot
from unicloze.visibility import Intervals, bool_mask

_MATRIX = 860.0
_LARGEST_CELL, _SMALLEST_CELL = 22.0, 0.75
_LABELLED_CELL, _GRID_CELL = 7.5, 4.5
_MARGIN = 22.0
_LONGEST_TOKEN = 14
_TICKS_APART = 12.0
_LEGEND = {
    "context": "context token",
    "mask": "masked position",
    "random": "random token instead of a mask",
    "original": "original token (O)",
    "pseudo": "pseudo mask (P)",
    "memory": "memory",
}


BEGINNINGS = rb'<svg\b[^>]*class="unicloze"', rb"\x89PNG.{,100}Software\x00unicloze"
"""How pictures written by unicloze begin."""


def save_picture(view: ExampleView, path: str | Path) -> None:
    """Write the mask picture of one example, as SVG or PNG depending on the extension."""
    check_ending(path)
    place, drawing = Path(path), draw_mask(view)
    content = drawing.to_png() if place.suffix.lower() == ".png" else drawing.to_svg() + "\n"
    write_file(place, content, "the picture", "give another --picture")


def check_ending(path: str | Path) -> None:
    """Reject a file name that names no format of pictures."""
    if Path(path).suffix.lower() not in (".svg", ".png"):
        raise UsageError(f"--picture {path}: give a name that ends in .svg or .png.")


def draw_mask(view: ExampleView) -> Drawing:
    """Draw a matrix with a row for each slot that reads and a column for each slot that is read.

    A cell is filled if the row reads the column, in the colour of the column's kind. Gaps separate C, O and P, smaller gaps
    the factorization steps. If layers differ in visibility, there is a matrix for each kind. Tokens, steps and predictions
    are shown if they are legible.
    """
    slots = view.slots
    cell = _cell(len(slots))
    labelled = cell >= _LABELLED_CELL
    font = min(12.5, cell * 0.78) if labelled else 10.0
    offsets = _offsets(slots, cell)
    side = float(offsets[-1] + cell) if slots else 0.0
    names = [f"{slot.position} {_shorten(slot.token)}" for slot in slots]
    name_width = font * MONO_WIDTH * max(map(len, names), default=0) if labelled else 22.0
    says = view.predictions if labelled else {}
    says_width = font * MONO_WIDTH * max(map(len, says.values()), default=0)
    step_width = 2.6 * font if labelled else 0.0

    left = _MARGIN + 26 + name_width + 8
    top = _MARGIN + 54 + 20 + name_width + 8 + (step_width * 0.6)
    width = max(left + side + step_width + 10 + says_width + _MARGIN, 460.0)
    headline = _fit(view.title, 15 * SANS_WIDTH, width - 2 * _MARGIN)
    order = _fit(f"Factorization steps, by position: {view.order}", 12 * SANS_WIDTH, width - 2 * _MARGIN)
    drawing = Drawing(width=width, height=0, title=f"{view.title}. {order}")
    drawing.labels += [
        Label(x=_MARGIN, y=_MARGIN + 8, text=headline, size=15, bold=True),
        Label(x=_MARGIN, y=_MARGIN + 30, text=order, size=12, role="muted"),
    ]
    above = top - _MARGIN - 60
    for layers, intervals in view.visibilities.items():
        if layers:
            label = _fit(layers[0].upper() + layers[1:], 12 * SANS_WIDTH, width - 2 * _MARGIN)
            drawing.labels.append(Label(x=_MARGIN, y=top - above + 2, text=label, size=12, bold=True))
            top += 20
        _fill(drawing, view, intervals, offsets, cell, left, top)
        _name_groups(drawing, view, offsets, cell, left, top, top - above)
        if labelled:
            _name_slots(drawing, slots, names, says, offsets + cell / 2, font, (left, top, side))
        else:
            _name_ticks(drawing, slots, offsets, cell, left, top)
        bottom, top = top + side + 26, top + side + above + 26
    drawing.height = _legend(drawing, view, bottom) + _MARGIN
    return drawing


def _cell(slots: int) -> float:
    cell = min(_LARGEST_CELL, max(_SMALLEST_CELL, _MATRIX / max(1, slots)))
    return cell if cell < _GRID_CELL else int(cell * 2) / 2


def _offsets(slots: list[Slot], cell: float) -> npt.NDArray[np.float64]:
    """Start of each slot's row and column."""
    gaps = [0.0]
    for before, slot in pairwise(slots):
        if before.group != slot.group:
            gaps.append(max(6.0, cell * 0.7))
        elif slot.group in "OP" and before.step != slot.step:
            gaps.append(cell * 0.22 if cell >= _GRID_CELL else 0.0)
        else:
            gaps.append(0.0)
    offsets: npt.NDArray[np.float64] = np.cumsum(gaps)[: len(slots)] + np.arange(len(slots)) * cell
    return offsets


def _fill(
    drawing: Drawing,
    view: ExampleView,
    intervals: Intervals,
    offsets: npt.NDArray[np.float64],
    cell: float,
    left: float,
    top: float,
) -> None:
    """Draw the cells: the background between gaps, then the filled cells, then a grid on top."""
    stretches = _stretches(offsets, cell)
    for y0, y1 in stretches:
        for x0, x1 in stretches:
            drawing.rectangles.append((left + x0, top + y0, x1 - x0, y1 - y0, "empty"))
    filled = list(_filled(view, intervals, offsets, cell))
    for x, y, w, h, kind in sorted(filled, key=lambda block: block[4]):
        drawing.rectangles.append((left + x, top + y, w, h, kind))
    if cell >= _GRID_CELL:
        line, side = max(1.0, cell * 0.07), float(offsets[-1] + cell)
        for offset in offsets[1:]:
            drawing.rectangles.append((left, top + offset - line / 2, side, line, "paper"))
            drawing.rectangles.append((left + offset - line / 2, top, line, side, "paper"))


def _stretches(offsets: npt.NDArray[np.float64], cell: float) -> list[tuple[float, float]]:
    breaks = np.flatnonzero(np.diff(offsets) > cell + 1e-6) + 1
    parts = np.split(offsets, breaks)
    return [(float(part[0]), float(part[-1] + cell)) for part in parts if len(part)]


def _filled(
    view: ExampleView, intervals: Intervals, offsets: npt.NDArray[np.float64], cell: float
) -> Iterator[tuple[float, float, float, float, str]]:
    """Blocks of equal colour, merged along rows and then along columns: x, y, width, height, kind."""
    kinds = np.array([slot.holds for slot in view.slots])
    apart = np.diff(offsets, prepend=-np.inf) > cell + 1e-6
    fresh = apart.copy()
    fresh[1:] |= kinds[1:] != kinds[:-1]
    columns = np.split(np.arange(len(kinds)), np.flatnonzero(fresh)[1:])
    growing: dict[tuple[int, int], int] = {}
    visible: npt.NDArray[np.bool_] = bool_mask(intervals, len(kinds))
    runs: set[tuple[int, int]] = set()
    for row in range(len(kinds) + 1):
        if row == len(kinds):
            runs = set()
        elif row == 0 or (visible[row] != visible[row - 1]).any():
            runs = set(_runs(visible[row], columns))
        for run, first in list(growing.items()):
            if run not in runs or (row < len(kinds) and apart[row]):
                del growing[run]
                x, y = float(offsets[run[0]]), float(offsets[first])
                width, height = float(offsets[run[1]]) + cell - x, float(offsets[row - 1]) + cell - y
                yield x, y, width, height, str(kinds[run[0]])
        for run in runs:
            growing.setdefault(run, row)


def _runs(reads: npt.NDArray[np.bool_], columns: list[npt.NDArray[np.intp]]) -> Iterator[tuple[int, int]]:
    """First and last column of each consecutive run that is read, within adjacent columns of one kind."""
    for members in columns:
        read = members[reads[members]]
        for run in np.split(read, np.flatnonzero(np.diff(read) > 1) + 1):
            if len(run):
                yield int(run[0]), int(run[-1])


def _name_groups(
    drawing: Drawing,
    view: ExampleView,
    offsets: npt.NDArray[np.float64],
    cell: float,
    left: float,
    top: float,
    above: float,
) -> None:
    first = 0
    for name, size in view.groups:
        middle = float(offsets[first] + offsets[first + size - 1] + cell) / 2
        drawing.labels += [
            Label(x=left + middle, y=above, text=name, size=14, bold=True, anchor="middle"),
            Label(x=_MARGIN + 4, y=top + middle, text=name, size=14, bold=True, anchor="middle"),
        ]
        first += size


def _name_slots(
    drawing: Drawing,
    slots: list[Slot],
    names: list[str],
    says: dict[int, str],
    middles: npt.NDArray[np.float64],
    font: float,
    place: tuple[float, float, float],
) -> None:
    """Label rows and columns with position, token and step, and the ends of rows with predictions."""
    left, top, side = place
    right = left + side + 8
    step_width = 2.6 * font
    for slot, name, middle in zip(slots, names, middles, strict=True):
        role = "ink" if slot.step is not None else "muted"
        across, down = float(left + middle), float(top + middle)
        drawing.labels += [
            Label(x=left - 8, y=down, text=name, size=font, role=role, anchor="end", mono=True),
            Label(x=across, y=top - 8 - step_width * 0.6, text=name, size=font, role=role, mono=True, upwards=True),
        ]
        if slot.step is not None:
            number, small = str(slot.step), font * 0.86
            drawing.labels += [
                Label(x=across, y=top - 9, text=number, size=small, role="muted", anchor="middle"),
                Label(x=right + step_width / 2, y=down, text=number, size=small, role="muted", anchor="middle"),
            ]
        if slot.slot in says:
            drawing.labels.append(Label(x=right + step_width, y=down, text=says[slot.slot], size=font, mono=True))
    if any(slot.step is not None for slot in slots):
        drawing.labels.append(
            Label(x=right + step_width / 2, y=top - 9, text="step", size=10, role="muted", anchor="middle")
        )
    if says:
        drawing.labels.append(Label(x=right + step_width + 4, y=top - 9, text="predicts", size=10, role="muted"))


def _name_ticks(
    drawing: Drawing, slots: list[Slot], offsets: npt.NDArray[np.float64], cell: float, left: float, top: float
) -> None:
    """If tokens would not be legible, label some positions of the context instead."""
    apart = next(step for step in (8, 16, 32, 64, 128, 256, 512, 1024) if step * cell >= 2.2 * _TICKS_APART)
    for slot, offset in zip(slots, offsets, strict=True):
        if slot.group == "C" and slot.position % apart == 0:
            middle, text = float(offset + cell / 2), str(slot.position)
            drawing.labels += [
                Label(x=left - 6, y=top + middle, text=text, size=10, role="muted", anchor="end"),
                Label(x=left + middle, y=top - 10, text=text, size=10, role="muted", anchor="middle"),
            ]


def _legend(drawing: Drawing, view: ExampleView, y: float) -> float:
    """Draw the legend of the colours, in as many lines as necessary; returns its lower end."""
    x, size = _MARGIN, 12.0
    present = {slot.holds for slot in view.slots}
    for kind, words in _LEGEND.items():
        if kind not in present:
            continue
        needed = 20 + len(words) * size * SANS_WIDTH + 18
        if x > _MARGIN and x + needed > drawing.width - _MARGIN:
            x, y = _MARGIN, y + 21
        drawing.rectangles.append((x, y - 6, 12, 12, kind))
        drawing.labels.append(Label(x=x + 19, y=y, text=words, size=size, role="muted"))
        x += needed
    note = "A row reads the filled columns."
    if x > _MARGIN and x + len(note) * size * SANS_WIDTH > drawing.width - _MARGIN:
        x, y = _MARGIN, y + 21
    drawing.labels.append(Label(x=x, y=y, text=note, size=size, role="muted"))
    return y


def _shorten(token: str) -> str:
    return token if len(token) <= _LONGEST_TOKEN else token[: _LONGEST_TOKEN - 1] + "…"


def _fit(text: str, character: float, width: float) -> str:
    most = max(8, int(width / character))
    return text if len(text) <= most else text[: most - 1] + "…"

"""Draws curves, such as the held-out perplexities of a run over its steps."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

from unicloze.errors import UniclozeError
from unicloze.example import predicts_tokens
from unicloze.report.curves import SMALLEST, Axis, apart, drawable, short
from unicloze.report.drawing import SANS_WIDTH, Drawing, Label
from unicloze.report.history import History, Points

_WIDTH, _HEIGHT = 560.0, 290.0
_LEFT, _TOP, _BOTTOM = 64.0, 50.0, 44.0
_LETTERS_APART = 15.0
_DOT = 5.0
_COLOURS = {"ae": "mask", "par": "pseudo"}


def draw_learning(run: str | os.PathLike[str]) -> Drawing:
    """The held-out perplexity of each target over the steps of a finished or unfinished run, on a logarithmic axis."""
    history = History.read(Path(run))
    curves: dict[str, Points] = {}
    for name in filter(predicts_tokens, history.evaluated):
        points = [(x, y) for x, y in history.curve("perplexity", name, evaluated=True) if drawable(y) and y > SMALLEST]
        if points:
            curves[name] = points
    if not curves:
        raise UniclozeError(f"{run} has no held-out perplexity to draw: it has not been evaluated yet.")
    colours = {name: _COLOURS.get(name.rpartition(".")[2], "original") for name in curves}
    return draw_curves(curves, title="Held-out perplexity", over="steps", colours=colours)


def draw_curves(
    curves: Mapping[str, Points], *, title: str, over: str, colours: Mapping[str, str], logarithmic: bool = False
) -> Drawing:
    """Draw curves of positive values on a logarithmic axis, each with its name and last value at its end."""
    ends = {name: f"{name} {short(points[-1][1])}" for name, points in curves.items()}
    right = _WIDTH - 18 - 13 * SANS_WIDTH * max(map(len, ends.values()))
    values = [y for points in curves.values() for _, y in points]
    first = min(points[0][0] for points in curves.values()) if logarithmic else 0.0
    across = Axis(first, max(points[-1][0] for points in curves.values()), _LEFT, right, logarithmic=logarithmic)
    upwards = Axis(min(values) / 1.15, max(values) * 1.15, _HEIGHT - _BOTTOM, _TOP, logarithmic=True)
    drawing = Drawing(width=_WIDTH, height=_HEIGHT, title=f"{title} over {over}: {', '.join(ends.values())}")
    drawing.labels.append(Label(x=22, y=30, text=title, size=15, bold=True))
    _draw_axes(drawing, across, upwards, over)
    lowest = -math.inf
    for name, points in sorted(curves.items(), key=lambda curve: -curve[1][-1][1]):
        places = [(across.at(x), upwards.at(y)) for x, y in points]
        drawing.lines.append((places, colours[name]))
        for x, y in places if logarithmic or len(places) == 1 else []:  # a line through one point is invisible
            drawing.rectangles.append((x - _DOT / 2, y - _DOT / 2, _DOT, _DOT, colours[name]))
        lowest = max(places[-1][1], lowest + _LETTERS_APART)
        drawing.labels.append(Label(x=right + 8, y=lowest, text=ends[name], size=13, role=colours[name], bold=True))
    return drawing


def _draw_axes(drawing: Drawing, across: Axis, upwards: Axis, over: str) -> None:
    floor = upwards.start
    ticks = upwards.ticks(4)
    for value, label in zip(ticks, apart(ticks), strict=True):
        y = upwards.at(value)
        drawing.rectangles.append((across.start, y - 0.5, across.end - across.start, 1, "empty"))
        drawing.labels.append(Label(x=across.start - 8, y=y, text=label, role="muted", anchor="end"))
    drawing.rectangles.append((across.start, floor, across.end - across.start, 1, "muted"))
    for value in across.ticks(6):
        drawing.labels.append(Label(x=across.at(value), y=floor + 14, text=short(value), role="muted", anchor="middle"))
    drawing.labels.append(
        Label(x=(across.start + across.end) / 2, y=floor + 32, text=over, role="muted", anchor="middle")
    )

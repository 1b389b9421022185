"""Draws the held-out perplexities of a run over its steps."""

from __future__ import annotations

import math
import os
from pathlib import Path

from unicloze.errors import UniclozeError
from unicloze.report.answer_words import is_token
from unicloze.report.curves import SMALLEST, Axis, apart, drawable, short
from unicloze.report.drawing import SANS_WIDTH, Drawing, Label
from unicloze.report.history import History, Points

_WIDTH, _HEIGHT = 560.0, 290.0
_LEFT, _TOP, _BOTTOM = 64.0, 50.0, 44.0
_LETTERS_APART = 15.0
_DOT = 5.0
_COLOURS = {"ae": "mask", "par": "pseudo"}


def draw_learning(run: str | os.PathLike[str]) -> Drawing:
    """The held-out perplexity of each target over the steps of a finished or unfinished run, on a logarithmic axis.

    Args:
        run: Directory of a pre-training run.

    Raises:
        UniclozeError: There is no run, or it has no perplexity yet.
    """
    history = History.read(Path(run))
    curves: dict[str, Points] = {}
    for name in filter(is_token, history.evaluated):
        points = [(x, y) for x, y in history.curve("perplexity", name, evaluated=True) if drawable(y) and y > SMALLEST]
        if points:
            curves[name] = points
    if not curves:
        raise UniclozeError(f"{run} has no held-out perplexity to draw: it has not been evaluated yet.")
    ends = {name: f"{name} {short(points[-1][1])}" for name, points in curves.items()}
    right = _WIDTH - 18 - 13 * SANS_WIDTH * max(map(len, ends.values()))
    values = [y for points in curves.values() for _, y in points]
    steps = Axis(0.0, max(points[-1][0] for points in curves.values()), _LEFT, right)
    perplexities = Axis(min(values) / 1.15, max(values) * 1.15, _HEIGHT - _BOTTOM, _TOP, logarithmic=True)
    title = "Held-out perplexity"
    drawing = Drawing(width=_WIDTH, height=_HEIGHT, title=f"{title} over steps: {', '.join(ends.values())}")
    drawing.labels.append(Label(x=22, y=30, text=title, size=15, bold=True))
    _draw_axes(drawing, steps, perplexities)
    lowest = -math.inf
    for name, points in sorted(curves.items(), key=lambda curve: -curve[1][-1][1]):
        colour = _COLOURS.get(name.rpartition(".")[2], "original")
        places = [(steps.at(x), perplexities.at(y)) for x, y in points]
        drawing.lines.append((places, colour))
        across, down = places[-1]
        if len(places) == 1:  # a line through one point is invisible
            drawing.rectangles.append((across - _DOT / 2, down - _DOT / 2, _DOT, _DOT, colour))
        lowest = max(down, lowest + _LETTERS_APART)
        drawing.labels.append(Label(x=right + 8, y=lowest, text=ends[name], size=13, role=colour, bold=True))
    return drawing


def _draw_axes(drawing: Drawing, steps: Axis, perplexities: Axis) -> None:
    floor = perplexities.start
    ticks = perplexities.ticks(4)
    for value, label in zip(ticks, apart(ticks), strict=True):
        y = perplexities.at(value)
        drawing.rectangles.append((steps.start, y - 0.5, steps.end - steps.start, 1, "empty"))
        drawing.labels.append(Label(x=steps.start - 8, y=y, text=label, role="muted", anchor="end"))
    drawing.rectangles.append((steps.start, floor, steps.end - steps.start, 1, "muted"))
    for value in steps.ticks(6):
        drawing.labels.append(Label(x=steps.at(value), y=floor + 14, text=short(value), role="muted", anchor="middle"))
    drawing.labels.append(
        Label(x=(steps.start + steps.end) / 2, y=floor + 32, text="step", role="muted", anchor="middle")
    )

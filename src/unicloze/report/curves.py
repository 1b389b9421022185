"""Line charts as inline SVG, coloured by the page's style sheet."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from unicloze.report import svg

Points = Sequence[tuple[float, float]]

LARGEST, SMALLEST = 1e300, 1e-300
"""Larger magnitudes would overflow an axis and are not drawn; smaller ones are treated as 0."""
_MOST_POINTS = 600
_LOG_FROM = 4.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 74.0, 14.0, 40.0
_LABELS_APART = 15.0
_FEW = 60
_LETTER = 8.8
_SMOOTH_FROM = 40


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve."""

    name: str  # what it shows
    points: Points  # (x, y) by ascending x; values that cannot be drawn are left out and counted
    smooth: bool = False  # draw a running mean over the pale curve, if it has enough points
    style: str | None = None  # style class of its colour; default: that of its target
    labelled: bool = True  # whether to write its name at its end, before its last value

    @property
    def classes(self) -> str:
        """Style class of the curve."""
        return self.style or series_class(self.name)


def series_class(name: str) -> str:
    """Style class of a series, by its target: `s-ae` for `ae` and for `one part.ae`."""
    return "s-" + re.sub(r"[^\w-]", "-", name.rpartition(".")[2])


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    width: float = 560,
    height: float = 300,
    logarithmic: bool = False,
    mark: tuple[float, str] | None = None,
    over: str = "step",
) -> str:
    """Draw curves over steps or another cost, each labelled at its end with its name and last value."""
    finite = [[(x, y) for x, y in line.points if drawable(y)] for line in lines]
    values = [y for points in finite for _, y in points]
    note = left_out(sum(len(line.points) for line in lines) - len(values))
    if not values:
        return f'<p class="nothing">Nothing measured yet.</p>{note}'
    steps = [x for points in finite for x, _ in points]
    logarithmic = logarithmic and min(values) > SMALLEST and max(values) / min(values) >= _LOG_FROM
    means = [
        running_mean(points) if line.smooth and len(points) >= _SMOOTH_FROM else None
        for line, points in zip(lines, finite, strict=True)
    ]
    lasts = [(smoothed or points)[-1][1] if points else None for smoothed, points in zip(means, finite, strict=True)]
    labels = [
        "" if last is None else f"{line.name * line.labelled} {short(last)}".strip()
        for line, last in zip(lines, lasts, strict=True)
    ]
    margin = max(_RIGHT, 12 + _LETTER * max(map(len, labels)))
    x_axis = Axis(min(0.0, *steps), max(steps), _LEFT, width - margin)
    y_axis = Axis(*_padded(min(values), max(values), logarithmic), height - _BOTTOM, _TOP, logarithmic=logarithmic)

    floor, right = height - _BOTTOM, width - margin
    parts = []
    ticks = y_axis.ticks(5)
    for value, label in zip(ticks, apart(ticks), strict=True):
        y = y_axis.at(value)
        parts += [svg.line([(_LEFT, y), (right, y)], "grid"), tick(_LEFT - 8, y, label, "end")]
    for value in x_axis.ticks(6):
        x = x_axis.at(value)
        parts += [svg.line([(x, floor), (x, floor + 4)], "axis"), tick(x, floor + 13, short(value), "middle")]
    parts.append(svg.line([(_LEFT, floor), (right, floor)], "axis"))
    parts.append(tick((_LEFT + right) / 2, height - 8, over, "middle"))

    if mark is not None:
        x, anchor = x_axis.at(mark[0]), "end" if mark[0] > x_axis.low + (x_axis.high - x_axis.low) * 0.5 else "start"
        beside = x - 5 if anchor == "end" else x + 5
        parts += [svg.line([(x, _TOP), (x, floor)], "mark"), tick(beside, floor - 9, mark[1], anchor)]
    ends = []
    for line, points, smoothed, last, label in zip(lines, finite, means, lasts, labels, strict=True):
        if last is not None:
            parts.append(_curve(line, points, smoothed, x_axis, y_axis, over))
            ends.append((y_axis.at(last), label, line.classes))
    ends.sort()
    for y, (_, label, classes) in zip(_apart([end[0] for end in ends], floor), ends, strict=True):
        parts.append(svg.text(label, right + 8, y, f"end {classes}"))
    return svg.picture(parts, title=title, width=width, height=height, class_="chart") + note


def drawable(value: float) -> bool:
    """Whether a chart can show a value."""
    return abs(value) <= LARGEST


def left_out(values: int) -> str:
    """A note, as HTML, on the number of values that a chart cannot show; empty for 0."""
    if not values:
        return ""
    return f'<p class="note">{values:,} value{"s" * (values > 1)} left out: infinite, undefined or too large</p>'


def tick(x: float, y: float, text: str, anchor: str) -> str:
    """An axis label; `anchor` is SVG's text-anchor."""
    return svg.text(text, x, y, "tick", anchor=anchor)


def _curve(line: Line, points: Points, smoothed: Points | None, x_axis: Axis, y_axis: Axis, over: str) -> str:
    """A line, or a pale line under its running mean; a short line has dots with tooltips."""
    parts = [svg.line(_places(thin(points), x_axis, y_axis), "line pale" if smoothed else "line")]
    if smoothed:
        parts.append(svg.line(_places(thin(smoothed), x_axis, y_axis), "line"))
    elif len(points) <= _FEW:
        for x, y in points:
            told = svg.element("title", svg.escape(f"{line.name}, {over} {x:,g}: {y:,.4g}"))
            parts.append(svg.element("circle", told, cx=x_axis.at(x), cy=y_axis.at(y), r=3))
    return svg.element("g", "\n".join(["", *parts, ""]), class_=line.classes)


def thin(points: Points) -> Points:
    """At most 600 points that preserve all peaks: the lowest and highest of each stretch, and the last."""
    if len(points) <= _MOST_POINTS:
        return points
    stretches = _MOST_POINTS // 2 - 1
    kept = []
    for stretch in range(stretches):
        members = points[len(points) * stretch // stretches : len(points) * (stretch + 1) // stretches]
        kept += sorted({min(members, key=_height), max(members, key=_height)})
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def running_mean(points: Points) -> Points:
    """The mean over a centred window of about a thirtieth of the points, smaller towards the ends."""
    reach = max(2, len(points) // 60)
    width, values = 2 * reach + 1, [y for _, y in points]
    # Sums within blocks, which are only added: subtracting a peak from a total cumulative sum would be inexact.
    blocks = [values[first : first + width] for first in range(0, len(values), width)]
    up_to = [total for block in blocks for total in itertools.accumulate(block)]
    onwards = [total for block in blocks for total in [*itertools.accumulate(block[::-1])][::-1]]
    smoothed = []
    for i, (x, _) in enumerate(points):
        near = min(reach, i, len(points) - 1 - i)
        first, last = i - near, i + near
        inner = up_to[last] + (onwards[first] if first % width else 0.0)  # if the window is as wide as a block
        total = inner if near == reach else sum(values[first : last + 1])
        smoothed.append((x, total / (2 * near + 1)))
    return smoothed


def short(value: float) -> str:
    """A number in short form for an axis: 0.003, 12.5, 1,500, 20k, 1.5M."""
    if math.isinf(value):
        return "∞"
    if abs(value) >= 1e15:
        return f"{value:.3g}"
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def apart(values: Sequence[float]) -> list[str]:
    """`short` labels, with more digits if necessary to distinguish all values."""
    labels = [short(value) for value in values]
    digits = 4
    while len(set(labels)) < len(values) and digits < 12:
        labels = [f"{value:.{digits}g}" for value in values]
        digits += 1
    return labels


def nice_ticks(low: float, high: float, most: int) -> list[float]:
    """About `most` round numbers from `low` to `high`, 1, 2 or 5 times a power of ten apart."""
    span = high - low
    rough = span / max(1, most)
    exponent = math.floor(math.log10(rough))
    power = 10.0**exponent
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, max(12, -exponent)) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers from `low` to `high` for a logarithmic axis; those of a linear axis if there are too few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        ticks = [factor * 10.0**power for power in powers for factor in factors]
        inside = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        if len(inside) >= 3:
            return inside[:: math.ceil(len(inside) / (2 * most))]
    return nice_ticks(low, high, most)


class Axis:
    """Maps values to positions.

    Args:
        low: Lowest value.
        high: Highest value.
        start: Position of the lowest value, in SVG units.
        end: Position of the highest value, in SVG units.
        logarithmic: Use a logarithmic scale.
    """

    def __init__(self, low: float, high: float, start: float, end: float, *, logarithmic: bool = False) -> None:
        if high - low < SMALLEST:
            around = abs(low) / 2 if abs(low) > SMALLEST else 1.0
            low, high = (low / 2, high * 2) if logarithmic else (low - around, high + around)
        self.low, self.high, self.start, self.end, self.logarithmic = low, high, start, end, logarithmic

    def at(self, value: float) -> float:
        """Position of a value."""
        low, high, value = (math.log(v) for v in (self.low, self.high, value)) if self.logarithmic else (
            self.low, self.high, value
        )  # fmt: skip
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self, most: int) -> list[float]:
        """About `most` round values on the axis."""
        return (log_ticks if self.logarithmic else nice_ticks)(self.low, self.high, most)


def _padded(low: float, high: float, logarithmic: bool) -> tuple[float, float]:
    if logarithmic:
        return low / 1.15, high * 1.15
    pad = (high - low) * 0.06
    return (low - pad if low - pad >= 0 or low < 0 else 0.0), high + pad


def _places(points: Points, x_axis: Axis, y_axis: Axis) -> Points:
    return [(x_axis.at(x), y_axis.at(y)) for x, y in points]


def _apart(places: list[float], floor: float) -> list[float]:
    """Sorted positions moved apart so that labels do not overlap, none below `floor`."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + _LABELS_APART) if moved else place)
    limit = floor
    for i in reversed(range(len(moved))):
        moved[i] = min(moved[i], limit)
        limit = moved[i] - _LABELS_APART
    return moved


def _height(point: tuple[float, float]) -> float:
    return point[1]

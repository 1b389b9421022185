"""Charts as inline SVG, coloured by the page's style sheet: curves over steps, and predictions against references."""

from __future__ import annotations

import html
import itertools
import math
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unicloze.errors import UniclozeError
from unicloze.example import predicts_tokens
from unicloze.report import svg
from unicloze.report.frame import score_row, score_table
from unicloze.report.history import History
from unicloze.report.history import Points as Outline
from unicloze.report.svg import SANS_WIDTH, Drawing, Label, series_class

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


MOST_LABELS = 20
"""Maximum rows of a confusion matrix; with more labels, the most frequent confusions are listed."""
MOST_CONFUSIONS = 15
MOST_DOTS = 3000
_CHARACTER = 6.6
_LONGEST_NAME = 18


def confusion(predictions: Sequence[str], references: Sequence[str], labels: Sequence[str]) -> str:
    """A confusion matrix with one row per reference label, shaded by the share of the row."""
    if not references:
        return '<p class="nothing">Nothing to compare.</p>'
    counts = Counter(zip(references, predictions, strict=True))
    names = list(dict.fromkeys([*labels, *sorted({label for pair in counts for label in pair})]))
    if len(names) > MOST_LABELS:
        return _confusions(counts)
    rows = Counter(references)
    longest = _CHARACTER * min(_LONGEST_NAME, max(map(len, names)))
    size = max(34.0, min(96.0, 460 / len(names)))
    height = size if len(names) > 4 else size * 0.7
    turned = longest > size - 6
    margin, top = 34 + longest, 30 + (longest * 0.75 if turned else 14)
    width = margin + size * len(names) + (max(16.0, longest * 0.75 - size / 2) if turned else 16)
    tall = top + height * len(names) + 12
    across, down = margin + size * len(names) / 2, top + height * len(names) / 2
    parts = [svg.text("predicted", across, 9, "axis-name", anchor="middle")]
    parts.append(svg.text("gold", 8, down, "axis-name", anchor="middle", turned=-90))
    for number, name in enumerate(names):
        x, y = margin + size * (number + 0.5), top + height * (number + 0.5)
        shown = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}\u2026"
        if turned:
            parts.append(svg.text(shown, x - 3, top - 9, "name", turned=-45))
        else:
            parts.append(svg.text(shown, x, top - 10, "name", anchor="middle"))
        parts.append(svg.text(shown, margin - 8, y, "name", anchor="end"))
    for row, right in enumerate(names):
        for column, said in enumerate(names):
            place = margin + size * column, top + height * row, size, height
            parts.append(_cell(place, right, said, counts[right, said], rows[right]))
    return _picture(parts, width, tall, "confusion matrix")


def _cell(place: tuple[float, float, float, float], right: str, said: str, found: int, of: int) -> str:
    """A cell of a confusion matrix, shaded by its share of the row, with its count if there is room."""
    x, y, width, height = place
    share = found / of if of else 0.0
    box = {"x": x + 1, "y": y + 1, "width": width - 2, "height": height - 2, "rx": 4}
    told = svg.element("title", svg.escape(f"{right} as {said}: {found:,} ({share:.1%})"))
    shade = 0.04 + 0.86 * share if found else 0.0
    cell = svg.element("rect", class_="empty", **box) + svg.element(
        "rect", told, class_="cell", **box, fill_opacity=shade
    )
    if found and width >= _CHARACTER * len(f"{found:,}") + 4:
        classes = "count on" if share > 0.55 else "count"
        cell += svg.text(f"{found:,}", x + width / 2, y + height / 2, classes, anchor="middle")
    return cell


def _confusions(counts: Counter[tuple[str, str]]) -> str:
    """A table of the most frequent errors, for too many labels for a matrix."""
    wrong = [(pair, count) for pair, count in counts.most_common() if pair[0] != pair[1]][:MOST_CONFUSIONS]
    rows = "".join(
        f'<tr><td>{html.escape(right)}</td><td>{html.escape(said)}</td><td class="number">{count:,}</td></tr>'
        for (right, said), count in wrong
    )
    heads = '<th scope="col">gold</th><th scope="col">predicted</th><th scope="col" class="number">times</th>'
    caption = "<caption>The most frequent confusions</caption>"
    return f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def scatter(predictions: Sequence[float], references: Sequence[float]) -> str:
    """Predicted over reference quantities, with the line of equality; values that cannot be drawn are counted."""
    pairs = _drawable(predictions, references)
    note = left_out(len(references) - len(pairs))
    if not pairs:
        return f'<p class="nothing">Nothing to compare.</p>{note}'
    pairs = pairs[:: math.ceil(len(pairs) / MOST_DOTS)]
    low, high = min(min(pair) for pair in pairs), max(max(pair) for pair in pairs)
    pad = (high - low) * 0.04
    across, up = Axis(low - pad, high + pad, 52, 470), Axis(low - pad, high + pad, 420, 12)
    parts = []
    for value in across.ticks(6):
        x, y = across.at(value), up.at(value)
        parts += [svg.line([(52, y), (470, y)], "grid"), tick(44, y, short(value), "end")]
        parts += [svg.line([(x, 420), (x, 424)], "axis"), tick(x, 433, short(value), "middle")]
    equal = [(across.at(value), up.at(value)) for value in (across.low, across.high)]
    parts += [svg.line([(52, 420), (470, 420)], "axis"), svg.line(equal, "equal")]
    parts += [svg.element("circle", class_="dot", cx=across.at(x), cy=up.at(y), r=3) for x, y in pairs]
    parts += [tick(261, 454, "gold", "middle"), svg.text("predicted", 8, 216, "tick", anchor="middle", turned=-90)]
    return _picture(parts, 480, 462, "predicted over gold quantities") + note


def _drawable(predictions: Sequence[float], references: Sequence[float]) -> list[tuple[float, float]]:
    """Pairs of reference and predicted quantities that can both be drawn."""
    pairs = zip(references, predictions, strict=True)
    return [(right, said) for right, said in pairs if drawable(right) and drawable(said)]


def lengths(predictions: Sequence[int], references: Sequence[int]) -> str:
    """A histogram of the lengths of predictions and references in words."""
    if not predictions:
        return '<p class="nothing">Nothing to compare.</p>'
    longest = max(*predictions, *references, 1)
    edges = nice_ticks(0, longest + 1, 14)
    step = max(1.0, edges[1] - edges[0]) if len(edges) > 1 else 1.0
    bins = math.floor(longest / step) + 1
    series = []
    for name, values in (("predicted", predictions), ("gold", references)):
        found = Counter(min(bins - 1, int(value // step)) for value in values)
        series.append((name, [found[number] for number in range(bins)]))
    most = max(count for _, counts in series for count in counts)
    across, up = Axis(0.0, bins * step, 52, 712), Axis(0.0, most * 1.05, 250, 12)
    parts = []
    for value in up.ticks(4):
        y = up.at(value)
        parts += [svg.line([(52, y), (712, y)], "grid"), tick(44, y, short(value), "end")]
    wide = (across.at(step) - across.at(0.0) - 4) / 2
    for place, (name, counts) in enumerate(series):
        for number, count in enumerate(counts):
            x, y = across.at(number * step) + 2 + place * wide, up.at(count)
            first, last = number * step, (number + 1) * step - 1
            words = f"{first:g}" if last <= first else f"{first:g} to {last:g}"
            told = svg.element("title", f"{words} words: {count:,} {name}")
            box = {"x": x, "y": y, "width": wide, "height": 250 - y, "rx": 1.5}
            parts.append(svg.element("rect", told, class_=f"bar s-{name}", **box))
    parts += [tick(across.at(value), 263, short(value), "middle") for value in across.ticks(12)]
    parts += [svg.line([(52, 250), (712, 250)], "axis"), tick(382, 285, "words", "middle")]
    legend = "".join(f'<span class="s-{name}">{name}</span>' for name, _ in series)
    return f'<div class="legend">{legend}</div>' + _picture(parts, 720, 292, "lengths in words")


def by_class(predictions: Sequence[str], references: Sequence[str], labels: Sequence[str]) -> str:
    """Precision, recall and F1 of each class in percent, or of the most frequent ones if there are many."""
    counts, rows, columns = (
        Counter(zip(references, predictions, strict=True)),
        Counter(references),
        Counter(predictions),
    )
    names = sorted({*labels, *rows}, key=lambda label: -rows[label])[:MOST_LABELS]
    lines = []
    for label in sorted(names, key=[*labels, *names].index):
        hits = counts[label, label]
        shares = [
            hits / max(1, columns[label]),
            hits / max(1, rows[label]),
            2 * hits / max(1, columns[label] + rows[label]),
        ]
        lines.append(score_row([html.escape(label)], [f"{rows[label]:,}", *(f"{100 * share:.1f}" for share in shares)]))
    return score_table(["class", "count", "precision", "recall", "F1"], lines, names=1)


def deviations(predictions: Sequence[float], references: Sequence[float]) -> str:
    """Errors, means and deviations of predicted and reference quantities that can be drawn; the others are counted."""
    pairs = _drawable(predictions, references)
    note = left_out(len(references) - len(pairs))
    if not pairs:
        return f'<p class="nothing">Nothing to compare.</p>{note}'
    gold, predicted = zip(*pairs, strict=True)
    off = [said - right for right, said in pairs]
    lines = [
        ("mean absolute error", statistics.fmean(map(abs, off))),
        ("root mean squared error", math.hypot(*off) / math.sqrt(len(off))),
        ("mean error, predicted minus gold", statistics.fmean(off)),
        ("mean predicted", statistics.fmean(predicted)),
        ("mean gold", statistics.fmean(gold)),
        ("standard deviation, predicted", statistics.pstdev(predicted)),
        ("standard deviation, gold", statistics.pstdev(gold)),
    ]
    return score_table(["", ""], [score_row([name], [f"{value:.4g}"]) for name, value in lines], names=1) + note


def _picture(content: Iterable[str], width: float, height: float, title: str) -> str:
    """A picture that is scaled down if necessary, but never up."""
    style = f"max-width:{width:.0f}px"
    return svg.picture(content, title=title, width=width, height=height, class_="chart own-size", style=style)


_WIDTH, _HEIGHT = 560.0, 290.0
_PICTURE_LEFT, _PICTURE_TOP, _PICTURE_BOTTOM = 64.0, 50.0, 44.0
_LETTERS_APART = 15.0
_DOT = 5.0
_COLOURS = {"ae": "mask", "par": "pseudo"}


def draw_learning(run: str | os.PathLike[str]) -> Drawing:
    """The held-out perplexity of each target over the steps of a finished or unfinished run, on a logarithmic axis."""
    history = History.read(Path(run))
    curves: dict[str, Outline] = {}
    for name in filter(predicts_tokens, history.evaluated):
        points = [(x, y) for x, y in history.curve("perplexity", name, evaluated=True) if drawable(y) and y > SMALLEST]
        if points:
            curves[name] = points
    if not curves:
        raise UniclozeError(f"{run} has no held-out perplexity to draw: it has not been evaluated yet.")
    colours = {name: _COLOURS.get(name.rpartition(".")[2], "original") for name in curves}
    return draw_curves(curves, title="Held-out perplexity", over="steps", colours=colours)


def draw_curves(
    curves: Mapping[str, Outline], *, title: str, over: str, colours: Mapping[str, str], logarithmic: bool = False
) -> Drawing:
    """Draw curves of positive values on a logarithmic axis, each with its name and last value at its end."""
    ends = {name: f"{name} {short(points[-1][1])}" for name, points in curves.items()}
    right = _WIDTH - 18 - 13 * SANS_WIDTH * max(map(len, ends.values()))
    values = [y for points in curves.values() for _, y in points]
    first = min(points[0][0] for points in curves.values()) if logarithmic else 0.0
    across = Axis(
        first, max(points[-1][0] for points in curves.values()), _PICTURE_LEFT, right, logarithmic=logarithmic
    )
    upwards = Axis(min(values) / 1.15, max(values) * 1.15, _HEIGHT - _PICTURE_BOTTOM, _PICTURE_TOP, logarithmic=True)
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
